//! The side that runs a backup.

use super::{
    channel::SourceChannel,
    frame_words::{FrameWords, PartKind, PartWords, stored_run},
    listed::page_entries,
    question::{ScanWords, SliceWords, SourceQuestion},
    words::{decoded, encoded, wrong_words},
};
use fullbore_format::{digest::Piece, entry::Entry, error::Result, page::EntryState};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice},
    known::{BaseEntry, StoredRun},
    source::{Source, Stream},
};
use fullbore_platform::queue::{End, Queue, start};
use std::sync::{Arc, atomic::Ordering::AcqRel};

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
        let slice = SliceWords::of_members(&small, large.as_deref())?;
        let words = self.read_slice(buf.made_for(), slice)?;
        let mut members = FarMembers {
            small,
            large,
            next: 0,
            entries: page_entries(&words.page)?.into_iter(),
        };
        let parts = words.parts.into_iter();
        let parts = parts
            .map(|part| members.part(part, words.data.len()))
            .collect::<Result<Vec<_>>>()?;
        if members.entries.len() > 0 {
            return Err(wrong_words("a frame has more entries than members"));
        }
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
    next: usize,
    /// Entries of the parts that follow.
    entries: std::vec::IntoIter<(Entry, EntryState)>,
}

impl FarMembers {
    fn part(&mut self, part: PartWords, data_bytes: usize) -> Result<FrameEntry> {
        if part.kind == PartKind::Piece {
            return Err(wrong_words("a member is something else"));
        }
        let (entry, state) = self
            .entries
            .next()
            .ok_or_else(|| wrong_words("a member has no entry"))?;
        if part.kind == PartKind::Head {
            let file = self.large.clone();
            let file = file.ok_or_else(|| wrong_words("a header is of no file"))?;
            return part.entry(FrameContent::Head(entry, file), None, data_bytes);
        }
        let small = self.small[self.next..].iter_mut();
        let found = small
            .enumerate()
            .find(|(_, member)| member.entry.path == entry.path);
        let known = match found {
            Some((skipped, member)) => {
                self.next += skipped + 1;
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
        part.entry(FrameContent::Whole(entry, state), known, data_bytes)
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
        // Positions come from another host: each is inside of the data that came with it.
        let are_within = runs.iter().flatten().all(|run| match run {
            StoredRun::Here { inner, len } => is_within(*inner, *len, data_bytes),
            StoredRun::Kept { .. } => true,
        });
        if !are_within || runs.is_none() && !is_within(self.inner, self.len, data_bytes) {
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

fn is_within(inner: u32, len: u32, data_bytes: usize) -> bool {
    u64::from(inner) + u64::from(len) <= data_bytes as u64
}

/// The next entries of a scan, and whether it ends with them.
fn next_batch(channel: &dyn SourceChannel, number: u32) -> Result<(Vec<Scanned>, bool)> {
    let answer = channel.ask(&encoded(&SourceQuestion::Scan(number)))?;
    let (listed, is_last): ScanWords = decoded(&answer)?;
    Ok((listed.scanned()?, is_last))
}

impl Source for FarTree {
    fn scan(&self) -> Result<Stream<Scanned>> {
        // A thread asks ahead, so that the connection's delay is paid once, not for each batch.
        let queue = Arc::new(Queue::with_room(BATCHES));
        let (filler, channel, number) = (End(queue.clone()), self.channel.clone(), self.number);
        start(move || {
            loop {
                let batch = next_batch(&*channel, number);
                let is_last = batch.as_ref().map_or(true, |(_, is_last)| *is_last);
                if !filler.0.push(batch.map(|(listed, _)| listed)) || is_last {
                    return;
                }
            }
        })?;
        let taken = End(queue);
        let batches = std::iter::from_fn(move || taken.0.pop());
        Ok(Box::new(batches.flat_map(|batch| match batch {
            Ok(listed) => listed.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
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

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::page::encode_entries;
    use fullbore_pipeline::frame::Pool;

    /// A host that answers each question with the same bytes.
    #[derive(Debug)]
    struct FixedAnswer(Vec<u8>);

    impl SourceChannel for FixedAnswer {
        fn ask(&self, _: &[u8]) -> Result<Vec<u8>> {
            Ok(self.0.clone())
        }
    }

    fn entry(path: &str) -> Entry {
        Entry {
            path: path.into(),
            ..Entry::default()
        }
    }

    fn member(path: &str) -> Scanned {
        Scanned::new(entry(path), EntryState::Whole)
    }

    fn part(kind: PartKind) -> PartWords {
        PartWords {
            kind,
            inner: 0,
            len: 3,
            is_known: false,
            runs: None,
            replaced: false,
            is_first: false,
        }
    }

    /// A frame of 3 bytes with these entries and parts.
    fn frame(paths: &[&str], parts: Vec<PartWords>) -> FrameWords {
        let entries: Vec<Entry> = paths.iter().map(|path| entry(path)).collect();
        let whole = EntryState::Whole;
        let page = encode_entries(entries.iter().map(|entry| (entry, &whole)));
        FrameWords {
            data: b"abc".to_vec().into(),
            parts,
            page: page.unwrap().into(),
            ends_member: true,
            left: None,
            changed: false,
            failed: None,
        }
    }

    /// Asks for the members "a" and "b", and reads this answer.
    fn read(words: &FrameWords) -> Result<Frame> {
        let tree = FarTree::new(Arc::new(FixedAnswer(encoded(words))), 0);
        let members = vec![member("a"), member("b")];
        tree.read(Slice::Members(members, None), Pool::new(1000, 1).take())
    }

    #[test]
    fn a_member_may_be_missing_or_left_for_the_next_frame() {
        let whole = || part(PartKind::Whole);
        let both = read(&frame(&["a", "b"], vec![whole(), whole()])).unwrap();
        assert_eq!((both.parts.len(), &both.data[..]), (2, &b"abc"[..]));
        assert_eq!(read(&frame(&["b"], vec![whole()])).unwrap().parts.len(), 1);
        let left = FrameWords {
            left: Some(1),
            ..frame(&["a"], vec![whole()])
        };
        let rest = read(&left).unwrap().rest;
        assert!(
            matches!(&rest, Some(Slice::Members(left, None)) if left[0].entry.path == b"b"),
            "{rest:?}"
        );
    }

    #[test]
    fn a_frame_that_does_not_fit_its_question_is_refused() {
        let whole = || part(PartKind::Whole);
        let far_away = PartWords {
            inner: 1,
            ..whole()
        };
        let known = PartWords {
            is_known: true,
            ..whole()
        };
        let run = PartWords {
            runs: Some(vec![(true, 2, 2)]),
            ..whole()
        };
        let no_page = FrameWords {
            page: b"no page".to_vec().into(),
            ..frame(&["a"], vec![whole()])
        };
        let lacks_three = FrameWords {
            left: Some(3),
            ..frame(&["a"], vec![whole()])
        };
        for (wrong, reason) in [
            (frame(&["c"], vec![whole()]), "was not asked for"),
            (frame(&["a"], vec![whole(), whole()]), "has no entry"),
            (frame(&["a", "b"], vec![whole()]), "more entries"),
            (frame(&["b", "a"], vec![whole(), whole()]), "out of order"),
            (frame(&["a"], vec![part(PartKind::Head)]), "of no file"),
            (frame(&[], vec![part(PartKind::Piece)]), "something else"),
            (frame(&["a"], vec![far_away]), "outside of its frame"),
            (frame(&["a"], vec![run]), "outside of its frame"),
            (frame(&["a"], vec![known]), "that is new"),
            (no_page, "not a page"),
            (lacks_three, "more than it had"),
        ] {
            let error = read(&wrong).unwrap_err().line();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }
}
