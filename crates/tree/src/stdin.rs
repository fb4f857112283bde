//! Standard input as a file, whose length is known only at its end.
//!
//! A tar header states the length before the content. If the destination can rewrite the start of a
//! segment, the place of the header is left free. Otherwise the stream is first written to a
//! temporary file without a name.

use crate::read::{pad, part};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, Owner, Time},
    error::{Error, ErrorKind, Result},
    page::EntryState,
    pax,
};
use fullbore_pipeline::frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice};
use fullbore_pipeline::source::{Source, Stream};
use fullbore_platform as platform;
use fullbore_platform::owner::OwnerNames;
use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Seek},
    sync::{Arc, Condvar, Mutex, atomic::Ordering::Release},
    time::{SystemTime, UNIX_EPOCH},
};

/// Standard input, stored as a file with a name.
pub struct Stdin {
    entry: Entry,
    input: Mutex<StdinInput>,
    turn: Condvar,
}

/// The stream and the number of bytes read from it.
struct StdinInput {
    stream: BufReader<Box<dyn Read + Send>>,
    offset: u64,
    ended: bool,
}

impl Stdin {
    /// Stores `input` as the file `path`. With `spool`, the whole input is first written to a
    /// temporary file to find its length.
    ///
    /// # Errors
    /// The system's error about the temporary file.
    pub fn new(path: EntryPath, input: Box<dyn Read + Send>, spool: bool) -> Result<Self> {
        let mut input = input;
        // A stream of unknown length: the header gets its size when the end has come.
        let mut size = u64::MAX;
        if spool {
            (input, size) = write_to_temporary_file(input)?;
        }
        let (uid, gid) = platform::user();
        let names = OwnerNames::default();
        let owner = Owner {
            uid,
            gid,
            user: names.user(uid),
            group: names.group(gid),
        };
        let kind = EntryKind::File { size, map: None };
        let entry = Entry {
            path,
            kind,
            mode: 0o644,
            owner,
            mtime: now(),
            ..Entry::default()
        };
        let input = Mutex::new(StdinInput {
            stream: BufReader::new(input),
            offset: 0,
            ended: false,
        });
        Ok(Self {
            entry,
            input,
            turn: Condvar::new(),
        })
    }

    /// Reads `len` bytes at `offset`, after all bytes before them were read. Fewer bytes come only
    /// at the end.
    ///
    /// Returns the number of bytes and whether the end is reached, or `None` if the stream ended
    /// before `offset`.
    fn read_in_turn(
        &self,
        buf: &mut Vec<u8>,
        offset: u64,
        len: u64,
    ) -> Result<Option<(u64, bool)>> {
        let input = self.input.lock().map_err(|_| stopped_error())?;
        let mut input = self
            .turn
            .wait_while(input, |input| input.offset < offset && !input.ended)
            .map_err(|_| stopped_error())?;
        if input.ended {
            return Ok(None);
        }
        let read = (&mut input.stream).take(len).read_to_end(buf);
        let end = read.and_then(|got| Ok((got as u64, is_at_end(&mut input.stream)?)));
        // An error is an end too, or readers that wait for their turn would wait for ever.
        input.ended = end.as_ref().map_or(true, |(_, end)| *end);
        input.offset = offset + len;
        self.turn.notify_all();
        match end.map_err(|e| Error::io("could not read the stream", e))? {
            (0, true) if offset == 0 => Err(empty_input_error()),
            end => Ok(Some(end)),
        }
    }
}

fn stopped_error() -> Error {
    Error::new(ErrorKind::Bug, "a reader stopped")
}

fn is_at_end(stream: &mut impl BufRead) -> std::io::Result<bool> {
    loop {
        match stream.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            filled => return filled.map(<[u8]>::is_empty),
        }
    }
}

/// In most cases the program that writes the stream has failed unnoticed.
fn empty_input_error() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "cannot back up an empty stream",
    )
    .hint("check whether the program that writes it failed; `set -o pipefail` makes the shell report this")
}

fn write_to_temporary_file(mut input: Box<dyn Read + Send>) -> Result<(Box<dyn Read + Send>, u64)> {
    let mut file: File =
        platform::write::anonymous_file(&std::env::temp_dir()).map_err(temporary_file_error)?;
    let size = std::io::copy(&mut input, &mut file).map_err(temporary_file_error)?;
    file.rewind().map_err(temporary_file_error)?;
    Ok((Box::new(file), size))
}

fn temporary_file_error(e: std::io::Error) -> Error {
    Error::io("could not write the stream to a temporary file", e)
}

/// Returns the time with at least one nanosecond, so that the header always has the same length.
fn now() -> Time {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        seconds: now.as_secs() as i64,
        nanos: now.subsec_nanos().max(1),
    }
}

impl Source for Stdin {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let scanned = Scanned::new(self.entry.clone(), EntryState::Whole);
        Ok(Box::new(std::iter::once(Ok(scanned))))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        match slice {
            Slice::Members(small, None) => self.read_small(small, buf),
            Slice::Members(_, Some(large)) => self.append_large_header(large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => self.read_piece(file, offset, len.into(), last, buf),
        }
    }
}

impl Stdin {
    /// Reads the whole input as one small file.
    fn read_small(&self, small: Vec<Scanned>, mut buf: Buf) -> Result<Frame> {
        let Some(scanned) = small.into_iter().next() else {
            return Ok(Frame::new(buf, Vec::new(), true));
        };
        let entry = scanned.entry;
        pax::write_header(&entry, &mut buf)?;
        let inner = buf.len();
        let size = entry.size();
        let (len, _) = self.read_in_turn(&mut buf, 0, size)?.unwrap_or_default();
        pad(&mut buf, len);
        let content = FrameContent::Whole(entry, scanned.state);
        let whole = FrameEntry {
            known: scanned.known,
            ..part(content, inner, len as usize)
        };
        Ok(Frame::new(buf, vec![whole], true))
    }

    /// Appends the header of a large input, unless its length is not known yet.
    fn append_large_header(&self, large: Arc<LargeFile>, mut buf: Buf) -> Result<Frame> {
        let alone = large.known.is_some();
        if !large.is_endless() && !alone {
            pax::write_header(&large.entry, &mut buf)?;
        }
        let inner = buf.len();
        let content = FrameContent::Head(self.entry.clone(), large);
        Ok(Frame::new(buf, vec![part(content, inner, 0)], alone))
    }

    /// Reads one piece. Many threads may call this; each waits until the pieces before its own are
    /// read.
    fn read_piece(
        &self,
        file: Arc<LargeFile>,
        offset: u64,
        len: u64,
        last: bool,
        mut buf: Buf,
    ) -> Result<Frame> {
        let Some((got, end)) = self.read_in_turn(&mut buf, offset, len)? else {
            return Ok(Frame::new(buf, Vec::new(), true));
        };
        let last = last || end;
        if last {
            file.end.store(offset + got, Release);
        }
        let alone = file.known.is_some();
        if last && !alone {
            pad(&mut buf, offset + got);
        }
        Ok(Frame::new(
            buf,
            vec![part(
                FrameContent::Piece { file, offset, last },
                0,
                got as usize,
            )],
            last || alone,
        ))
    }
}
