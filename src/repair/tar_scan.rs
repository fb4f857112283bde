//! Records made anew from the tar itself, where the pages that described it are nowhere.
//!
//! A segment is read frame by frame from its start, as its frames are a tar. What a tar does not say is unknown: inodes, change
//! times, sockets, how well a file was captured. Pieces of files that changed are counted, no file can be made of them alone.
//! Nothing is written here. Memory holds one frame and the stored pages that come out.

use super::frame_index::{Index, Stretch};
use crate::{
    archive::object::{ObjectName, ObjectReader},
    error::{Error, ErrorKind, Result, quoted},
    format::{
        digest::{Algorithm, Joiner, Piece, piece},
        entry::{EntryKind, order},
        page::{
            Extent, FrameAt, MAX_EXTENTS, MAX_RECORDS, MAX_TEXT_BYTES, ManifestPage, Record,
            SegmentId, block_digests,
        },
        pax::{Member, PaxReader, TarItem, skip, skip_padding},
        root::FORMAT_ALONE,
    },
    stage::{
        codec::{Codec, Decompressor},
        thin::PARTS,
    },
};
use std::{
    collections::{BTreeMap, HashSet},
    io::{self, Read},
};

/// A larger frame is refused before memory is taken.
const MAX_FRAME_BYTES: u32 = 1 << 30;

/// A segment whose tar is read.
pub(crate) struct Tar<'a> {
    pub(crate) store: &'a dyn ObjectReader,
    pub(crate) codec: Codec,
    /// As records are to name it.
    pub(crate) id: SegmentId,
    /// Of the backup that wrote it: one that stands alone has no pieces of files.
    pub(crate) format: u32,
    pub(crate) algorithm: Algorithm,
    /// Bytes of a block of a file.
    pub(crate) block_bytes: u64,
}

/// What headers say.
#[derive(Default)]
pub(crate) struct Recovered {
    /// Stored pages, in order, for each stretch that was wanted.
    pub(crate) pages: BTreeMap<Stretch, Vec<Vec<u8>>>,
    /// Pieces of files that are nothing by themselves.
    pub(crate) pieces: u64,
    /// Why the rest could not be read; if nothing, every frame is whole.
    pub(crate) damage: Option<Error>,
}

impl Tar<'_> {
    /// Read all of it; pages are made of the stretches in `wanted`. Damage ends it, and is no error.
    ///
    /// # Errors
    /// If a page cannot be encoded.
    pub(crate) fn recover(&self, index: &Index, wanted: &HashSet<Stretch>) -> Result<Recovered> {
        let mut run = self.run(index, wanted);
        match run.members() {
            Err(error) if matches!(error.kind, ErrorKind::Bug) => return Err(error),
            other => run.recovered.damage = other.err(),
        }
        run.close()?;
        let damaged = index
            .data
            .get(run.input.next)
            .or(index.data.last())
            .map(|frame| frame.0);
        if run.recovered.damage.is_some()
            && damaged.is_some_and(|stretch| wanted.contains(&stretch))
        {
            run.recovered.drop_open()?;
        }
        Ok(run.recovered)
    }

    fn run<'a>(&'a self, index: &'a Index, wanted: &'a HashSet<Stretch>) -> TarScan<'a> {
        let input = ScanInput {
            tar: self,
            index,
            decompressor: self.codec.decompressor(),
            next: 0,
            plain: Vec::new(),
            at: 0,
        };
        let (page, recovered) = (ManifestPage::default(), Recovered::default());
        TarScan {
            input,
            wanted,
            page,
            text_bytes: 0,
            extents: 0,
            stretch: 0,
            recovered,
        }
    }
}

impl Recovered {
    /// A file that does not go on, as the rest of it cannot be read, is not there.
    fn drop_open(&mut self) -> Result<()> {
        for stored in self
            .pages
            .values_mut()
            .rev()
            .flat_map(|pages| pages.iter_mut().rev())
        {
            let mut page = ManifestPage::decode(stored)?;
            let Some(last) = page.records.pop_if(|last| last.more) else {
                break;
            };
            let is_first = last.from == 0;
            *stored = page.encode()?;
            if is_first {
                break;
            }
        }
        self.pages.values_mut().for_each(|pages| {
            pages.retain(|page| ManifestPage::decode(page).is_ok_and(|p| !p.records.is_empty()))
        });
        Ok(())
    }
}

/// The plain bytes of all frames, one after the other.
struct ScanInput<'a> {
    tar: &'a Tar<'a>,
    index: &'a Index,
    decompressor: Decompressor,
    next: usize,
    plain: Vec<u8>,
    at: usize,
}

impl ScanInput<'_> {
    /// Decode frames until there is a byte; `false` at the end.
    fn fill(&mut self) -> Result<bool> {
        while self.at == self.plain.len() {
            let Some((_, offset, stored, plain)) = self.index.data.get(self.next).copied() else {
                return Ok(false);
            };
            if stored.max(plain) > MAX_FRAME_BYTES {
                return Err(Error::corrupt("a frame is larger than a frame can be"));
            }
            let mut bytes = Vec::new();
            self.tar.store.read_at(
                &ObjectName::Segment(self.tar.id.clone()),
                offset,
                stored as usize,
                &mut bytes,
            )?;
            self.decompressor
                .decompress(&bytes, plain as usize, &mut self.plain)?;
            (self.at, self.next) = (0, self.next + 1);
        }
        Ok(true)
    }

    /// The stretch of the frame that was decoded last.
    fn stretch(&self) -> Stretch {
        self.index
            .data
            .get(self.next.saturating_sub(1))
            .map_or(0, |frame| frame.0)
    }

    /// Up to `most` bytes of one frame, and where they are.
    fn run(&mut self, most: u64) -> Result<(Stretch, Extent, &[u8])> {
        if !self.fill()? {
            return Err(Error::corrupt(
                "the tar is cut off in the middle of a member",
            ));
        }
        let (stretch, offset, stored_len, plain_len) = self.index.data[self.next - 1];
        let (inner, len) = (
            self.at,
            most.min((self.plain.len() - self.at) as u64) as usize,
        );
        self.at += len;
        let frame = FrameAt {
            segment: 0,
            offset,
            stored_len,
            plain_len,
        };
        Ok((
            stretch,
            Extent {
                frame,
                inner: inner as u32,
                len: len as u32,
            },
            &self.plain[inner..inner + len],
        ))
    }
}

impl Read for ScanInput<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let damaged = |error: Error| io::Error::new(io::ErrorKind::InvalidData, error.line());
        if !self.fill().map_err(damaged)? {
            return Ok(0);
        }
        let count = (&self.plain[self.at..]).read(buffer)?;
        self.at += count;
        Ok(count)
    }
}

struct TarScan<'a> {
    input: ScanInput<'a>,
    wanted: &'a HashSet<Stretch>,
    page: ManifestPage,
    /// What its records hold.
    text_bytes: usize,
    extents: usize,
    /// Where the records of the page are from.
    stretch: Stretch,
    recovered: Recovered,
}

impl TarScan<'_> {
    fn members(&mut self) -> Result<()> {
        let mut reader = PaxReader::new();
        while let Some(found) = reader.next(&mut self.input)? {
            match found {
                TarItem::Member(member) => self.member(member)?,
                TarItem::Unknown(unknown) => skip(&mut self.input, unknown.stored_len)?,
                TarItem::Outside(unknown) => {
                    let what = format!(
                        "the name {} leads out of the archive",
                        quoted(&unknown.name)
                    );
                    return Err(Error::corrupt(what));
                }
            }
        }
        // Nothing but service frames follows a tar of ours.
        if reader.was_trailed() {
            Err(Error::corrupt("what follows the tar is none"))
        } else {
            Ok(())
        }
    }

    fn member(&mut self, member: Member) -> Result<()> {
        let Member {
            entry, stored_len, ..
        } = member;
        let stretch = self.input.stretch();
        if self.input.tar.format > FORMAT_ALONE && entry.path.starts_with(PARTS) {
            self.recovered.pieces += u64::from(self.wanted.contains(&stretch));
            return skip(&mut self.input, stored_len);
        }
        let record = Record {
            entry,
            ..Record::default()
        };
        if matches!(record.entry.kind, EntryKind::File { .. }) {
            return self.file(record, stretch, stored_len);
        }
        self.push(stretch, record)?;
        skip(&mut self.input, stored_len)
    }

    /// A file, whose header ends in `stretch`. What it has in another one is described there, as pages do.
    fn file(&mut self, mut record: Record, mut stretch: Stretch, total: u64) -> Result<()> {
        let (algorithm, block) = (self.input.tar.algorithm, self.input.tar.block_bytes);
        let (mut joiner, mut at) = (Joiner::default(), 0);
        // Without pieces that begin where blocks do there is no digest to be had in one pass.
        let mut fits = true;
        if total == 0 {
            joiner.push(&piece(algorithm, &[], 0, 0, block));
        }
        while at < total {
            let (here, extent, bytes) = self.input.run(total - at)?;
            fits &= algorithm == Algorithm::Crc32c
                || extent.len as u64 == total
                || (at.is_multiple_of(block) && total > block);
            let hashed = if fits {
                piece(algorithm, bytes, at, total, block)
            } else {
                Piece::None
            };
            if !record.extents.is_empty()
                && (here != stretch || record.extents.len() >= MAX_EXTENTS)
            {
                let next = Record {
                    entry: record.entry.clone(),
                    from: at,
                    ..Record::default()
                };
                self.push(
                    stretch,
                    Record {
                        more: true,
                        ..std::mem::replace(&mut record, next)
                    },
                )?;
            }
            record.blocks.extend(block_digests(&hashed, block));
            joiner.push(&hashed);
            record.extents.push(extent);
            (stretch, at) = (here, at + u64::from(extent.len));
        }
        skip_padding(&mut self.input, total)?;
        record.digest = joiner.finish().filter(|_| fits);
        if record.blocks.len() < 2 || !fits {
            record.blocks.clear();
        }
        self.push(stretch, record)
    }

    fn push(&mut self, stretch: Stretch, record: Record) -> Result<()> {
        // What comes late begins anew, in pages of its own.
        let ends = |last: &Record| last.more || order(&last.entry.path, &record.entry.path).is_gt();
        let is_full = self.page.records.len() >= MAX_RECORDS
            || self.text_bytes >= MAX_TEXT_BYTES
            || self.extents >= MAX_EXTENTS;
        if stretch != self.stretch || is_full || self.page.records.last().is_some_and(ends) {
            self.close()?;
        }
        self.stretch = stretch;
        self.text_bytes += record.entry.text_bytes() + record.digest_bytes();
        self.extents += record.extents.len();
        self.page.records.push(record);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let page = std::mem::take(&mut self.page);
        (self.text_bytes, self.extents) = (0, 0);
        if !page.records.is_empty() && self.wanted.contains(&self.stretch) {
            let page = ManifestPage {
                segments: vec![self.input.tar.id.clone()],
                ..page
            };
            self.recovered
                .pages
                .entry(self.stretch)
                .or_default()
                .push(page.encode()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{archive::object::DirectoryObjects, format::entry::Entry};
    use std::path::Path;

    /// Pages of so many records like this one, by how many records each has.
    fn pages(count: usize, record: &Record) -> Vec<usize> {
        let store = DirectoryObjects::new(Path::new("none"), "none");
        let id = SegmentId {
            backup: String::new(),
            stream: 1,
            number: 1,
        };
        let (codec, algorithm) = (Codec::Tar, Algorithm::Blake3);
        let tar = Tar {
            store: &store,
            codec,
            id,
            format: FORMAT_ALONE,
            algorithm,
            block_bytes: 1 << 20,
        };
        let (index, wanted) = (Index::default(), HashSet::from([0]));
        let mut run = tar.run(&index, &wanted);
        for number in 0..count {
            let path = [format!("{number:06}").as_bytes(), &record.entry.path].concat();
            run.push(
                0,
                Record {
                    entry: Entry {
                        path,
                        ..record.entry.clone()
                    },
                    ..record.clone()
                },
            )
            .unwrap();
        }
        run.close().unwrap();
        let pages = &run.recovered.pages[&0];
        pages
            .iter()
            .map(|page| ManifestPage::decode(page).unwrap().records.len())
            .collect()
    }

    #[test]
    fn pages_made_anew_are_no_larger_than_those_of_a_backup() {
        let file = Entry {
            path: "f".into(),
            kind: EntryKind::File { size: 0, map: None },
            ..Entry::default()
        };
        let plain = Record {
            entry: file.clone(),
            ..Record::default()
        };
        assert_eq!(pages(MAX_RECORDS + 1, &plain), [MAX_RECORDS, 1]);
        let frame = FrameAt {
            segment: 0,
            offset: 0,
            stored_len: 5,
            plain_len: 10,
        };
        let extents = vec![
            Extent {
                frame,
                inner: 0,
                len: 10
            };
            MAX_EXTENTS / 4
        ];
        let size = (MAX_EXTENTS / 4 * 10) as u64;
        let cut = Entry {
            kind: EntryKind::File { size, map: None },
            ..file.clone()
        };
        assert_eq!(
            pages(
                9,
                &Record {
                    entry: cut,
                    extents,
                    ..Record::default()
                }
            ),
            [4, 4, 1]
        );
        let path = vec![b'x'; MAX_TEXT_BYTES / 4];
        assert_eq!(
            pages(
                9,
                &Record {
                    entry: Entry { path, ..file },
                    ..Record::default()
                }
            ),
            [4, 4, 1]
        );
    }
}
