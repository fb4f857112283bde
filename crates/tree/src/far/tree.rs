//! The side that runs a backup.

use super::{
    FrameWords, LargeWords, PartKind, PartWords, ScanWords, ScannedWords, SliceWords,
    SourceChannel, SourceQuestion,
    words::{EntryWords, KnownWords, StateWords, decoded, encoded, stored_run, wrong_words},
};
use fullbore_format::{digest::Piece, entry::Time, error::Result, page::EntryState};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice},
    known::{BaseEntry, StoredRun},
    source::{Source, Stream},
};
use fullbore_platform::queue::{End, Queue, start};
use std::sync::{
    Arc,
    atomic::Ordering::{AcqRel, Relaxed},
};

/// Batches of a scan that are fetched before they are needed.
const BATCHES: usize = 4;

/// A source of another host.
#[derive(Debug)]
pub struct FarTree {
    channel: Arc<dyn SourceChannel>,
    number: u32,
}

impl FarTree {
    pub(super) fn new(channel: Arc<dyn SourceChannel>, number: u32) -> Self {
        Self { channel, number }
    }

    fn read_slice(&self, capacity: usize, slice: SliceWords) -> Result<FrameWords> {
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        let question = SourceQuestion::Read(self.number, capacity, slice);
        decoded(&self.channel.ask(&encoded(&question))?)
    }

    fn read_members(
        &self,
        small: Vec<Scanned>,
        large: Option<Arc<LargeFile>>,
        mut buf: Buf,
    ) -> Result<Frame> {
        let slice = SliceWords::Members(
            small.iter().map(ScannedWords::of).collect(),
            large.as_deref().map(LargeWords::of).map(Box::new),
        );
        let words = self.read_slice(buf.made_for(), slice)?;
        let mut members = FarMembers {
            small,
            large,
            at: 0,
        };
        let parts = words.parts.into_iter();
        let parts = parts
            .map(|part| members.part(part, words.data.len()))
            .collect::<Result<Vec<_>>>()?;
        buf.extend_from_slice(&words.data);
        let FarMembers {
            mut small, large, ..
        } = members;
        let rest = match words.left {
            None => None,
            // Members that did not fit go into the next frame. More than were asked for is a lie.
            Some(left) if left as usize <= small.len() => {
                let left = small.split_off(small.len() - left as usize);
                Some(Slice::Members(left, large))
            }
            Some(_) => return Err(wrong_words("a frame lacks more than it had")),
        };
        Ok(Frame {
            rest,
            ..Frame::new(buf, parts, words.ends_member)
        })
    }

    fn read_piece(
        &self,
        file: Arc<LargeFile>,
        (offset, len, last): (u64, u32, bool),
        mut buf: Buf,
    ) -> Result<Frame> {
        let path = file.entry.path.clone().into();
        let slice = SliceWords::Piece {
            path,
            offset,
            len,
            last,
        };
        let words = self.read_slice(buf.made_for(), slice)?;
        file.changed.fetch_or(words.changed, AcqRel);
        if let Some(reason) = words.failed {
            // The first failure is the reason; what follows are its consequences.
            file.failed.get_or_init(|| reason);
        }
        let data_bytes = words.data.len();
        let parts = words
            .parts
            .into_iter()
            .map(|part| match part.kind {
                PartKind::Piece => {
                    let file = file.clone();
                    part.entry(FrameContent::Piece { file, offset, last }, None, data_bytes)
                }
                _ => Err(wrong_words("a piece is something else")),
            })
            .collect::<Result<Vec<_>>>()?;
        buf.extend_from_slice(&words.data);
        Ok(Frame::new(buf, parts, words.ends_member))
    }
}

/// The members of a slice, which the parts of its frame are matched with.
struct FarMembers {
    small: Vec<Scanned>,
    large: Option<Arc<LargeFile>>,
    /// Members that parts were found for, or that vanished.
    at: usize,
}

impl FarMembers {
    fn part(&mut self, part: PartWords, data_bytes: usize) -> Result<FrameEntry> {
        let (entry, state) = match part.kind {
            PartKind::Whole(entry, state) => (entry.entry()?, state.state()),
            PartKind::Head(entry) => {
                let file = self.large.clone();
                let file = file.ok_or_else(|| wrong_words("a header is of no file"))?;
                let content = FrameContent::Head(entry.entry()?, file);
                return PartWords {
                    kind: PartKind::Piece,
                    ..part
                }
                .entry(content, None, data_bytes);
            }
            PartKind::Piece => return Err(wrong_words("a member is something else")),
        };
        let small = self.small[self.at..].iter_mut();
        let found = small
            .enumerate()
            .find(|(_, member)| member.entry.path == entry.path);
        let known = match found {
            Some((skipped, member)) => {
                self.at += skipped + 1;
                member.known.clone()
            }
            // A large file that could not be opened is a member without content.
            None if self
                .large
                .as_ref()
                .is_some_and(|file| file.entry.path == entry.path) =>
            {
                None
            }
            None => return Err(wrong_words("a member was not asked for")),
        };
        let content = FrameContent::Whole(entry, state);
        PartWords {
            kind: PartKind::Piece,
            ..part
        }
        .entry(content, known, data_bytes)
    }
}

impl PartWords {
    fn entry(
        self,
        content: FrameContent,
        known: Option<BaseEntry>,
        data_bytes: usize,
    ) -> Result<FrameEntry> {
        let runs = self.runs.map(|runs| runs.into_iter().map(stored_run));
        let runs = runs
            .map(Iterator::collect::<Result<Vec<StoredRun>>>)
            .transpose()?;
        let is_within =
            |inner: u32, len: u32| u64::from(inner) + u64::from(len) <= data_bytes as u64;
        // Positions come from another host: each is inside of the data that came with it.
        let are_within = runs.iter().flatten().all(|run| match run {
            StoredRun::Here { inner, len } => is_within(*inner, *len),
            StoredRun::Kept { .. } => true,
        });
        if !are_within || runs.is_none() && !is_within(self.inner, self.len) {
            return Err(wrong_words("a part is outside of its frame"));
        }
        if self.is_known && known.is_none() {
            return Err(wrong_words("it knows a file that is new"));
        }
        Ok(FrameEntry {
            what: content,
            inner: self.inner,
            len: self.len,
            known: known.filter(|_| self.is_known),
            runs,
            piece: Piece::None,
            crcs: Vec::new(),
            chunks: Vec::new(),
            replaced: self.replaced,
            is_first: self.is_first,
        })
    }
}

impl ScannedWords {
    pub(super) fn of(scanned: &Scanned) -> Self {
        Self {
            entry: EntryWords::of(&scanned.entry),
            state: StateWords::of(&scanned.state),
            born: scanned.born.map(|time| (time.seconds, time.nanos)),
            home: scanned.home,
            exposed: scanned.exposed,
            is_first: scanned.is_first,
            known: scanned.known.as_ref().map(KnownWords::of),
        }
    }

    pub(super) fn scanned(self) -> Result<Scanned> {
        let entry = self.entry.entry()?;
        let known = self.known.map(|known| known.known(&entry)).transpose()?;
        let born = self.born.map(|(seconds, nanos)| Time { seconds, nanos });
        Ok(Scanned {
            born,
            home: self.home,
            exposed: self.exposed,
            is_first: self.is_first,
            known,
            ..Scanned::new(entry, self.state.state())
        })
    }
}

impl LargeWords {
    fn of(file: &LargeFile) -> Self {
        let scanned = Scanned {
            born: file.born,
            known: file.known.clone(),
            ..Scanned::new(file.entry.clone(), EntryState::Whole)
        };
        Self {
            scanned: ScannedWords::of(&scanned),
            data_len: file.data_len,
            pieces: file.unread.load(Relaxed),
        }
    }
}

impl Source for FarTree {
    fn scan(&self) -> Result<Stream<Scanned>> {
        // A thread asks ahead, so that the connection's delay is paid once, not for each batch.
        let queue = Arc::new(Queue::with_room(BATCHES));
        let (filler, channel, number) = (End(queue.clone()), self.channel.clone(), self.number);
        start(move || {
            loop {
                let question = encoded(&SourceQuestion::Scan(number));
                let batch = channel.ask(&question).and_then(|words| decoded(&words));
                let is_last = batch
                    .as_ref()
                    .map_or(true, |(_, is_last): &ScanWords| *is_last);
                if !filler.0.push(batch) || is_last {
                    return;
                }
            }
        })?;
        let taken = End(queue);
        let batches = std::iter::from_fn(move || taken.0.pop());
        Ok(Box::new(batches.flat_map(|batch| {
            let entries: Vec<Result<Scanned>> = match batch {
                Ok((words, _)) => words.into_iter().map(ScannedWords::scanned).collect(),
                Err(error) => vec![Err(error)],
            };
            entries
        })))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        slice.wait();
        match slice {
            Slice::Members(small, large) => {
                let head = large.clone();
                let frame = self.read_members(small, large, buf);
                // The other host has tried to open it: its pieces need not wait any longer.
                if let Some(head) = head {
                    head.opened.get_or_init(|| Err(EntryState::Vanished));
                }
                frame
            }
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => self.read_piece(file, (offset, len, last), buf),
        }
    }
}
