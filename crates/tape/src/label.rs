//! The label of a tape: one record at its begin, and one before each backup that is appended.
//!
//! The record is a plain tar of 10 KiB, so that `tar -tf /dev/nst0` lists it without options:
//! `.fullbore/label.json`, and `.fullbore/README` with the commands that read the tape without this
//! program. It is never encrypted, and names no host and no path.

use crate::{Drive, DriveResult, Fault, ReadOutcome, Space};
use fullbore_format::{
    entry::{Entry, EntryKind, Owner, Time},
    error::{Error, Result},
    pax::{PaxReader, TarItem, write_header},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io::Read;

/// The length of the record. GNU tar reads records of this length without options.
pub const LABEL_BYTES: usize = 10 << 10;
/// The longest name of a tape.
const MOST_NAME_BYTES: usize = 32;
/// The longest text of a label that is read.
const MOST_TEXT_BYTES: u64 = 4 << 10;
const LABEL_PATH: &str = ".fullbore/label.json";
const README_PATH: &str = ".fullbore/README";

const README: &str = "This tape was written by fullbore. Without it, read the parts of the tape one after the other:\n\
    \n\
    mt -f /dev/nst0 rewind; mt -f /dev/nst0 fsf 1\n\
    while dd if=/dev/nst0 bs=1M | zstd -dc | tar -xi; do :; done\n\
    \n\
    If the parts are encrypted, put `age -d -i KEY` between dd and zstd. Read the volumes of a set in their order.\n";

/// What a label says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TapeLabel {
    /// The name of the tape, as on its sticker: letters, digits, `.`, `_` and `-`.
    pub tape: String,
    /// The set of volumes; empty for a tape that only has a name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub set: String,
    /// The number of the volume in its set, from 1; 0 without a set.
    #[serde(default)]
    pub volume: u32,
    /// When it was written, as RFC 3339.
    pub time: String,
    /// The length of the records that follow.
    pub record_bytes: u32,
    /// When the tape may be written again, as RFC 3339; empty: when its backups are forgotten.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expires: String,
    /// Fingerprints of the keys; empty if the parts are not encrypted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The digest of the trailer of the volume before; empty on the first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_trailer: String,
}

/// What the begin of a tape is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TapeBegin {
    /// No record.
    Blank,
    /// A label of this program.
    Labelled(TapeLabel),
    /// Data of another program, or damage.
    Foreign,
}

/// Returns whether a text may be the name of a tape.
pub fn is_tape_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MOST_NAME_BYTES).contains(&text.len()) && text.chars().all(is_plain)
}

impl TapeLabel {
    /// Returns the record of [`LABEL_BYTES`].
    ///
    /// # Errors
    /// If a value makes the label too long.
    pub fn to_record(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self)
            .map_err(|error| Error::corrupt("cannot write the label of a tape").because(error))?;
        let mut record = Vec::new();
        add_member(&mut record, LABEL_PATH, &json)?;
        add_member(&mut record, README_PATH, README.as_bytes())?;
        let end = record.len() + 2 * BLOCK_BYTES;
        if end > LABEL_BYTES || json.len() as u64 > MOST_TEXT_BYTES {
            return Err(Error::corrupt(
                "cannot write the label of a tape: it is too long",
            ));
        }
        record.resize(LABEL_BYTES, 0);
        Ok(record)
    }

    /// Returns whether the tape may be written again.
    pub fn is_expired(&self) -> bool {
        let end: Option<Timestamp> = self.expires.parse().ok();
        end.is_some_and(|end| end <= Timestamp::now())
    }

    /// Reads a record; `None` if it is no label of this program.
    pub fn of_record(record: &[u8]) -> Option<Self> {
        let mut input = record;
        let mut reader = PaxReader::new();
        let Ok(Some(TarItem::Member(member))) = reader.next(&mut input) else {
            return None;
        };
        if member.entry.path != LABEL_PATH.as_bytes() || member.stored_len > MOST_TEXT_BYTES {
            return None;
        }
        let mut text = Vec::new();
        input.take(member.stored_len).read_to_end(&mut text).ok()?;
        let label: Self = serde_json::from_slice(&text).ok()?;
        is_tape_name(&label.tape).then_some(label)
    }
}

const BLOCK_BYTES: usize = 512;

fn add_member(record: &mut Vec<u8>, path: &str, content: &[u8]) -> Result<()> {
    let size = content.len() as u64;
    let entry = Entry {
        path: path.into(),
        kind: EntryKind::File { size, map: None },
        mode: 0o644,
        owner: Owner::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        inode: 0,
        xattrs: Vec::new(),
    };
    write_header(&entry, record)?;
    record.extend_from_slice(content);
    record.resize(record.len().next_multiple_of(BLOCK_BYTES), 0);
    Ok(())
}

/// Rewinds and reads the begin of a tape. The head is behind the first record.
///
/// # Errors
/// Those of the drive.
pub fn read_begin(drive: &mut dyn Drive) -> DriveResult<TapeBegin> {
    drive.rewind()?;
    read_label(drive)
}

/// Reads the record at the current place as a label.
///
/// # Errors
/// Those of the drive, but not that a record is damaged or too long.
pub fn read_label(drive: &mut dyn Drive) -> DriveResult<TapeBegin> {
    let start = drive.position().ok().map(|place| place.next);
    let mut buffer = vec![0; (drive.limits().most_bytes as usize).min(1 << 20)];
    match drive.read(&mut buffer) {
        Ok(ReadOutcome::EndOfData) => Ok(TapeBegin::Blank),
        Ok(ReadOutcome::Mark) => Ok(TapeBegin::Foreign),
        Ok(ReadOutcome::Record(len)) => {
            let label = TapeLabel::of_record(&buffer[..len]);
            Ok(label.map_or(TapeBegin::Foreign, TapeBegin::Labelled))
        }
        Err(error) if error.fault == Fault::Medium => Ok(if has_no_more(drive, start) {
            TapeBegin::Blank
        } else {
            TapeBegin::Foreign
        }),
        Err(error) if error.fault == Fault::RecordTooLong => Ok(TapeBegin::Foreign),
        Err(error) => Err(error),
    }
}

/// Returns whether the data ends where a read has failed: the `st` driver answers `EIO` for a blank
/// tape, as for damage.
fn has_no_more(drive: &mut dyn Drive, start: Option<u64>) -> bool {
    let is_told = drive.status().is_ok_and(|status| status.at_end_of_data);
    if is_told || start.is_none() {
        return is_told;
    }
    let is_at_end = drive.space(Space::EndOfData).is_ok();
    is_at_end && drive.position().ok().map(|place| place.next) == start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> TapeLabel {
        TapeLabel {
            tape: "A00001L8".to_owned(),
            set: "20261129T065555Z-79uafq".to_owned(),
            volume: 3,
            time: "2026-11-29T06:55:55Z".to_owned(),
            record_bytes: 1 << 20,
            keys: vec!["age1xyz".to_owned()],
            ..TapeLabel::default()
        }
    }

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let record = label().to_record().unwrap();
        assert_eq!(record.len(), LABEL_BYTES);
        assert_eq!(TapeLabel::of_record(&record), Some(label()));
    }

    #[test]
    fn a_record_that_was_changed_is_no_label_or_one_with_a_plain_name() {
        let record = label().to_record().unwrap();
        for place in 0..record.len() {
            let mut changed = record.clone();
            changed[place] ^= 0x55;
            if let Some(label) = TapeLabel::of_record(&changed) {
                assert!(is_tape_name(&label.tape), "{place}");
            }
        }
        for len in 0..record.len() {
            let _ = TapeLabel::of_record(&record[..len]);
        }
        assert_eq!(TapeLabel::of_record(&[]), None);
    }

    #[test]
    fn names_of_tapes_are_plain() {
        for (name, is_good) in [
            ("A1", true),
            ("", false),
            ("a b", false),
            ("a/b", false),
            ("\u{e4}", false),
        ] {
            assert_eq!(is_tape_name(name), is_good, "{name}");
        }
        assert!(is_tape_name(&"x".repeat(32)) && !is_tape_name(&"x".repeat(33)));
    }
}
