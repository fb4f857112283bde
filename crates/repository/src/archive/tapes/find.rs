//! Finds the backups of a tape without a catalog: the newest whole part is looked for from the end of the data.

use super::{
    part::Part,
    reader::{ReaderState, TapeReader},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{Root, TapeExtent, TapePlace},
    seal::MAX_BYTES,
};
use fullbore_storage::Storages;
use fullbore_tape::{DriveError, DriveResult, Fault, ReadOutcome, Space, TapeLabel};
use std::sync::Arc;

/// So many files of a tape are looked at for one backup, at most.
const MOST_FILES: usize = 10_000;
/// Blocks before the first part of a backup: its label and a mark.
const LABEL_BLOCKS: u64 = 2;

/// Records between two marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TapeFile {
    /// The first record.
    begin: u64,
    /// Behind the last record.
    end: u64,
    last_bytes: u64,
}

/// A root on a tape, and where its part stands.
pub(super) struct FoundRoot {
    pub(super) root: Root,
    pub(super) is_sealed: bool,
}

/// Returns where the data of the tape ends; `None` if the drive does not tell places.
///
/// # Errors
/// Those of the drive.
pub(super) fn end_of_data(reader: &TapeReader) -> Result<Option<u64>> {
    let mut state = reader.state();
    let end = go_to_end(&mut state);
    end.map_err(DriveError::into_error)
}

fn go_to_end(state: &mut ReaderState) -> DriveResult<Option<u64>> {
    let Some(drive) = &mut state.drive else {
        return Ok(None);
    };
    drive.space(Space::EndOfData)?;
    Ok(drive.position().ok().map(|place| place.next))
}

/// Finds the newest root on the tape in the drive, or that of the backup whose id begins so.
///
/// # Errors
/// Those of the drive and of keys. `None` if there is no whole part of such a backup.
pub(super) fn find_root(
    storages: &Storages,
    reader: &Arc<TapeReader>,
    label: &TapeLabel,
    wanted: Option<&str>,
) -> Result<Option<FoundRoot>> {
    let mut files = match end_of_data(reader)? {
        Some(end) => TapeFiles::Backwards(end),
        None => TapeFiles::Known(read_all(reader)?),
    };
    for _ in 0..MOST_FILES {
        let Some(file) = files.before(reader)? else {
            break;
        };
        let found = match root_in(storages, reader, label, file) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::NotFound) => {
                fullbore_platform::debug(|| error.line());
                continue;
            }
            Err(error) => return Err(error),
        };
        if wanted.is_none_or(|id| found.root.id.starts_with(id)) {
            return Ok(Some(found));
        }
        files.skip_to(first_block(&found.root, &label.tape));
    }
    Ok(None)
}

/// Returns the first block of a backup on a tape.
fn first_block(root: &Root, tape: &str) -> u64 {
    let places = root
        .segments
        .iter()
        .filter_map(|segment| segment.tape.as_ref());
    let extents = places.flat_map(|place| &place.extents);
    let blocks = extents
        .filter(|extent| extent.tape == tape)
        .map(|extent| extent.block);
    blocks.min().unwrap_or(0)
}

/// The files of a tape, from the last to the first.
enum TapeFiles {
    /// They end before this block. The drive looks for the marks.
    Backwards(u64),
    /// They are known: the drive has no places, so all was read.
    Known(Vec<TapeFile>),
}

impl TapeFiles {
    fn before(&mut self, reader: &TapeReader) -> Result<Option<TapeFile>> {
        match self {
            Self::Known(files) => Ok(files.pop()),
            Self::Backwards(end) => {
                let found = file_before(&mut reader.state(), *end);
                let found = found.map_err(DriveError::into_error)?;
                *end = found.map_or(0, |file| file.begin);
                Ok(found)
            }
        }
    }

    /// Goes before the label of a backup whose first part is at a block.
    fn skip_to(&mut self, block: u64) {
        let label = block.saturating_sub(LABEL_BLOCKS);
        match self {
            Self::Backwards(end) => *end = label.min(*end),
            Self::Known(files) => files.retain(|file| file.begin < label),
        }
    }
}

/// Returns the last file that ends before a block.
fn file_before(state: &mut ReaderState, end: u64) -> DriveResult<Option<TapeFile>> {
    let Some(drive) = state.drive.as_mut().filter(|_| end > 1) else {
        return Ok(None);
    };
    drive.locate(end)?;
    drive.space(Space::Marks(-1))?;
    let mut mark = drive.position()?.next;
    let mut file_end = end;
    if mark + 1 == end {
        file_end = mark;
        match drive.space(Space::Marks(-1)) {
            Ok(()) => mark = drive.position()?.next,
            // There is no mark before the first file, which is the label of the tape.
            Err(error) if error.fault == Fault::Medium => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let begin = mark + 1;
    if begin >= file_end {
        return Ok(Some(TapeFile {
            begin,
            end: begin,
            last_bytes: 0,
        }));
    }
    drive.locate(file_end - 1)?;
    let mut buffer = vec![0; drive.limits().most_bytes as usize];
    let last_bytes = match drive.read(&mut buffer) {
        Ok(ReadOutcome::Record(len)) => len as u64,
        Ok(_) => 0,
        Err(error) if matches!(error.fault, Fault::Medium | Fault::RecordTooLong) => 0,
        Err(error) => return Err(error),
    };
    Ok(Some(TapeFile {
        begin,
        end: file_end,
        last_bytes,
    }))
}

/// Reads the whole tape, to count records and marks.
fn read_all(reader: &TapeReader) -> Result<Vec<TapeFile>> {
    let mut state = reader.state();
    let Some(drive) = &mut state.drive else {
        return Ok(Vec::new());
    };
    drive.rewind().map_err(DriveError::into_error)?;
    let mut buffer = vec![0; drive.limits().most_bytes as usize];
    let mut files = Vec::new();
    let (mut block, mut begin, mut last_bytes) = (0, 0, 0);
    loop {
        let found = drive.read(&mut buffer).map_err(DriveError::into_error)?;
        match found {
            ReadOutcome::Record(len) => last_bytes = len as u64,
            ReadOutcome::Mark | ReadOutcome::EndOfData => {
                if begin < block {
                    files.push(TapeFile {
                        begin,
                        end: block,
                        last_bytes,
                    });
                }
                if found == ReadOutcome::EndOfData || files.len() > MOST_FILES {
                    return Ok(files);
                }
                begin = block + 1;
            }
        }
        block += 1;
    }
}

/// Reads the root at the end of a file, if the file is a whole part.
fn root_in(
    storages: &Storages,
    reader: &Arc<TapeReader>,
    label: &TapeLabel,
    file: TapeFile,
) -> Result<Option<FoundRoot>> {
    if file.last_bytes == 0 {
        return Ok(None);
    }
    let record_bytes = u64::from(label.record_bytes);
    let bytes = (file.end - file.begin - 1)
        .checked_mul(record_bytes)
        .and_then(|bytes| bytes.checked_add(file.last_bytes))
        .ok_or_else(|| Error::corrupt("a tape has too many records"))?;
    let place = TapePlace {
        record_bytes: label.record_bytes,
        has_catalog: false,
        header: String::new(),
        extents: vec![TapeExtent {
            tape: label.tape.clone(),
            volume: label.volume,
            block: file.begin,
            bytes,
        }],
    };
    let name = format!("the part at record {} of tape {:?}", file.begin, label.tape);
    let part = Part::open(storages, reader, &label.set, place.clone(), &name)?;
    let part_label = part.label()?;
    let Some(at) = part.reader().locator()? else {
        return Ok(None);
    };
    if at.len > MAX_BYTES {
        return Err(Error::corrupt(format!("{name} is damaged")).because("its root is too large"));
    }
    let mut stored = Vec::new();
    part.read_at(at.offset, at.len as usize, &mut stored)?;
    let mut root = Root::open(&stored, &name)?;
    let number = root.volume.map(|facts| facts.number);
    if root.id != part_label.backup || number != Some(part_label.number) {
        return Err(Error::corrupt(format!(
            "{name} has the root of another part"
        )));
    }
    let own = { root.segments.iter_mut() }.find(|segment| Some(segment.number) == number);
    let own = own.and_then(|segment| segment.tape.as_mut());
    let Some(own) = own else {
        return Err(Error::corrupt(format!(
            "{name} does not say where it stands"
        )));
    };
    // The root was written before the end of its part: the length is known only here.
    let volume = own
        .extents
        .first()
        .map_or(label.volume, |extent| extent.volume);
    own.extents = place.extents;
    own.extents
        .iter_mut()
        .for_each(|extent| extent.volume = volume);
    let is_sealed = part.is_sealed();
    Ok(Some(FoundRoot { root, is_sealed }))
}
