//! The side that has the files.

use super::{
    FarOrigin, FrameWords, LargeWords, OriginWords, PartKind, PartWords, ScanWords, ScannedWords,
    SliceWords, SourceQuestion,
    room::{MAX_CAPACITY, PART_BYTES},
    words::{EntryWords, StateWords, decoded, encoded, encoded_in, stored_words, wrong_words},
};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath},
    error::{Error, ErrorKind, Result},
};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Pool, Scanned, Slice},
    source::{Source, Stream},
};
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering::Relaxed},
};

/// Bytes of the entries of one answer.
const BATCH_BYTES: usize = 512 << 10;

/// Bytes of the maps of all large files that are being read, and of what else is kept of them.
const KEPT_BYTES: usize = 32 << 20;

/// Bytes of what is kept of one, without its map.
const KEPT_FILE_BYTES: usize = 1 << 10;

/// Opens what the words of a question mean.
pub type OpenSubject = dyn Fn(&[u8]) -> Result<OpenedSources> + Send + Sync;

/// Sources that were opened for another host.
pub struct OpenedSources {
    /// Where they are; the number of sources is that of the list.
    pub origin: FarOrigin,
    pub sources: Vec<Arc<dyn Source>>,
    /// Warnings, after all scans.
    pub warnings: Box<dyn Fn() -> Vec<String> + Send + Sync>,
}

/// Answers the questions of a host that runs a backup.
pub struct ServedSources {
    open: Box<OpenSubject>,
    host: String,
    opened: OnceLock<Opened>,
}

struct Opened {
    of: OpenedSources,
    sources: Vec<ServedSource>,
}

struct ServedSource {
    source: Arc<dyn Source>,
    scan: Mutex<Option<Stream<Scanned>>>,
    large: Mutex<BTreeMap<EntryPath, ServedFile>>,
}

/// A large file that is being read.
#[derive(Clone)]
struct ServedFile {
    file: Arc<LargeFile>,
    /// Pieces that were not asked for yet.
    pieces: u64,
    /// Was its header read?
    is_begun: bool,
}

impl fmt::Debug for ServedSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServedSources")
    }
}

impl ServedSources {
    /// Serves what `open` opens, on the host of this name.
    pub fn new(host: String, open: Box<OpenSubject>) -> Self {
        Self {
            open,
            host,
            opened: OnceLock::new(),
        }
    }

    /// Answers a question. Safe from any thread.
    ///
    /// # Errors
    /// Those of the sources; [`ErrorKind::Corrupt`] for what is no question.
    pub fn answer(&self, question: &[u8]) -> Result<Vec<u8>> {
        match decoded(question)? {
            SourceQuestion::HostName => Ok(encoded(&self.host)),
            SourceQuestion::Open(words) => self.open(&words),
            SourceQuestion::Scan(number) => Ok(encoded(&self.source(number)?.next_entries()?)),
            SourceQuestion::Read(number, capacity, slice) => {
                let words = self.source(number)?.read(slice, capacity)?;
                let bytes = words.data.len() + words.parts.len() * PART_BYTES;
                Ok(encoded_in(&words, bytes))
            }
            SourceQuestion::Warnings => Ok(encoded(&(self.opened()?.of.warnings)())),
        }
    }

    fn open(&self, words: &[u8]) -> Result<Vec<u8>> {
        let of = (self.open)(words)?;
        let paths = of.origin.paths.iter();
        let answer = encoded(&OriginWords {
            host: of.origin.host.clone(),
            paths: paths.map(|path| path.clone().into()).collect(),
            contents: of.origin.contents,
            sources: of.sources.len() as u32,
        });
        let sources = of.sources.iter().cloned().map(ServedSource::new).collect();
        let opened = Opened { of, sources };
        if self.opened.set(opened).is_err() {
            let message = "cannot open a second source over one connection";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(answer)
    }

    fn opened(&self) -> Result<&Opened> {
        self.opened
            .get()
            .ok_or_else(|| wrong_words("none was opened"))
    }

    fn source(&self, number: u32) -> Result<&ServedSource> {
        let source = self.opened()?.sources.get(number as usize);
        source.ok_or_else(|| wrong_words("there is no such source"))
    }
}

impl ServedSource {
    fn new(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            scan: Mutex::default(),
            large: Mutex::default(),
        }
    }

    fn next_entries(&self) -> Result<ScanWords> {
        let mut scan = self.scan.locked();
        if scan.is_none() {
            *scan = Some(self.source.scan()?);
        }
        let mut entries = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES {
            let Some(scanned) = scan.as_mut().and_then(Iterator::next) else {
                *scan = Some(Box::new(std::iter::empty()));
                return Ok((entries, true));
            };
            let scanned = scanned?;
            bytes += scanned.entry.text_bytes() + 64;
            entries.push(ScannedWords::of(&scanned));
        }
        Ok((entries, false))
    }

    fn read(&self, slice: SliceWords, capacity: u32) -> Result<FrameWords> {
        if capacity > MAX_CAPACITY {
            return Err(wrong_words("a frame is too large"));
        }
        // The answer takes the buffer, so none is kept.
        let buf = Pool::new(capacity as usize, 0).take();
        match slice {
            SliceWords::Members(small, large) => self.read_members(small, large, buf),
            SliceWords::Piece {
                path,
                offset,
                len,
                last,
            } => self.read_piece(&path, (offset, len, last), buf),
        }
    }

    fn read_members(
        &self,
        small: Vec<ScannedWords>,
        large: Option<Box<LargeWords>>,
        buf: Buf,
    ) -> Result<FrameWords> {
        let small = small.into_iter().map(ScannedWords::scanned);
        let small = small.collect::<Result<Vec<_>>>()?;
        // The sizes come from the other side: a frame has the memory of one frame, whatever they
        // say.
        let most = buf.made_for() as u64;
        if small.iter().any(|scanned| bytes_read(scanned) > most) {
            return Err(wrong_words("a file is larger than its frame"));
        }
        let large = large.map(|words| self.keep_large(*words)).transpose()?;
        let frame = self
            .source
            .read(Slice::Members(small, large.clone()), buf)?;
        if let Some(file) = &large
            && frame.rest.is_none()
        {
            let is_open = frame
                .parts
                .iter()
                .any(|part| matches!(part.what, FrameContent::Head(..)));
            self.change_kept(&file.entry.path, |kept| {
                kept.is_begun = true;
                kept.pieces *= u64::from(is_open);
            });
        }
        Ok(FrameWords::of(frame, large.as_deref()))
    }

    /// A large file by its words; one that was left by an earlier frame is the same file.
    fn keep_large(&self, words: LargeWords) -> Result<Arc<LargeFile>> {
        let scanned = words.scanned.scanned()?;
        let path = scanned.entry.path.clone();
        let mut all = self.large.locked();
        // Pieces of one file come in several frames: state of the file must be one.
        if let Some(kept) = all.get(&path) {
            return Ok(kept.file.clone());
        }
        // The other side decides how many files it begins: this bounds their memory.
        let held: usize = all.values().map(|kept| kept_bytes(&kept.file.entry)).sum();
        if held > 0 && held + kept_bytes(&scanned.entry) > KEPT_BYTES {
            return Err(wrong_words("it begins more files than it reads"));
        }
        let file = LargeFile::new(scanned, words.data_len, words.pieces);
        let kept = ServedFile {
            file: file.clone(),
            pieces: words.pieces,
            is_begun: false,
        };
        all.insert(path, kept);
        Ok(file)
    }

    /// Changes a large file, and forgets it once all of it was read. Returns it.
    fn change_kept(
        &self,
        path: &[u8],
        change: impl FnOnce(&mut ServedFile),
    ) -> Option<Arc<LargeFile>> {
        let mut all = self.large.locked();
        let kept = all.get_mut(path)?;
        change(kept);
        let file = kept.file.clone();
        if kept.is_begun && kept.pieces == 0 {
            all.remove(path);
        }
        Some(file)
    }

    fn read_piece(
        &self,
        path: &[u8],
        (offset, len, last): (u64, u32, bool),
        buf: Buf,
    ) -> Result<FrameWords> {
        let Some(file) = self.change_kept(path, |kept| kept.pieces = kept.pieces.saturating_sub(1))
        else {
            // It could not be opened.
            return Ok(FrameWords::of(Frame::new(buf, Vec::new(), last), None));
        };
        let end = offset.checked_add(len.into());
        if end.is_none_or(|end| end > file.data_len) || len as usize > buf.made_for() {
            return Err(wrong_words("a piece is outside of its file"));
        }
        let piece = Slice::Piece {
            file: file.clone(),
            offset,
            len,
            last,
        };
        let frame = self.source.read(piece, buf)?;
        Ok(FrameWords::of(frame, Some(&file)))
    }
}

/// Bytes that are kept of a large file: its map has 16 bytes for each run.
fn kept_bytes(entry: &Entry) -> usize {
    let map = match &entry.kind {
        EntryKind::File { map: Some(map), .. } => map.len() * 16,
        _ => 0,
    };
    KEPT_FILE_BYTES + map
}

impl FrameWords {
    fn of(mut frame: Frame, large: Option<&LargeFile>) -> Self {
        let left = frame.rest.as_ref().map(|rest| match rest {
            Slice::Members(left, _) => left.len() as u32,
            Slice::Piece { .. } => 0,
        });
        Self {
            data: std::mem::take(&mut *frame.data).into(),
            parts: frame.parts.iter().map(PartWords::of).collect(),
            ends_member: frame.ends_member,
            left,
            changed: large.is_some_and(|file| file.changed.load(Relaxed)),
            failed: large.and_then(|file| file.failed.get().cloned()),
        }
    }
}

impl PartWords {
    fn of(part: &FrameEntry) -> Self {
        let kind = match &part.what {
            FrameContent::Whole(entry, state) => {
                PartKind::Whole(EntryWords::of(entry), StateWords::of(state))
            }
            FrameContent::Head(entry, _) => PartKind::Head(EntryWords::of(entry)),
            FrameContent::Piece { .. } => PartKind::Piece,
        };
        let runs = part.runs.as_ref();
        Self {
            kind,
            inner: part.inner,
            len: part.len,
            is_known: part.known.is_some(),
            runs: runs.map(|runs| runs.iter().map(stored_words).collect()),
            replaced: part.replaced,
            is_first: part.is_first,
        }
    }
}

/// Returns how many bytes of an object are read at most: all, or the runs that are stored again.
fn bytes_read(scanned: &Scanned) -> u64 {
    let again = scanned
        .known
        .as_ref()
        .and_then(|known| known.changed.as_ref());
    match again {
        _ if scanned.is_read() => scanned.entry.data_len(),
        Some(runs) => runs.iter().fold(0, |sum, run| sum.saturating_add(run.len)),
        None => 0,
    }
}
