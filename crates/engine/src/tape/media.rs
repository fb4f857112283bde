//! Which tape may be written: one that is blank, whose label has no backup or is expired, or whose name was given.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::utc_second,
};
use fullbore_platform::queue::Locked;
use fullbore_repository::{
    page_spool::PageSpool, tape_catalog::TapeCatalog, tape_drive::NamedDrive,
};
use fullbore_storage::{ChangeAction, ChangeRequest, Changed, MediaChange, Storages};
use fullbore_tape::{
    Drive, DriveError, DriveResult, Fault, ReadOutcome, RingDrive, Space, TapeBegin, TapeLabel,
    TapeUse, read_begin,
};
use jiff::Timestamp;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    sync::{Arc, Mutex},
};

/// A part ends behind this many bytes by default: 700 marks on a tape of 12 TB.
const PART_BYTES: u64 = 16 << 30;
/// A file of more bytes is stored in pieces, as behind the early warning there is only some room.
const WHOLE_BYTES: u64 = 64 << 20;

/// The choices of a user about tapes.
#[derive(Debug, Clone, Default)]
pub struct TapeOptions {
    /// Names of tapes that may be written over; `foreign` is data of other programs.
    pub overwrite: Vec<String>,
    /// Whether the backup is added behind those on the first tape.
    pub append: bool,
    /// When the tapes may be written again.
    pub expires: Option<Timestamp>,
    /// Bytes after which a part ends.
    pub part_bytes: Option<u64>,
    /// Bytes of the buffers before the drive.
    pub buffer_bytes: Option<u64>,
}

impl TapeOptions {
    /// Returns whether nothing was chosen.
    pub fn is_default(&self) -> bool {
        let Self {
            overwrite,
            append,
            expires,
            part_bytes,
            buffer_bytes,
        } = self;
        overwrite.is_empty()
            && !append
            && expires.is_none()
            && part_bytes.is_none()
            && buffer_bytes.is_none()
    }

    pub(super) fn part_bytes(&self) -> u64 {
        self.part_bytes.unwrap_or(PART_BYTES)
    }
}

/// A drive as a destination.
#[derive(Debug, Clone)]
pub struct TapeSpec {
    /// The drive.
    pub drive: NamedDrive,
    /// The choices of the user.
    pub options: TapeOptions,
    pub(super) change: MediaChange,
    pub(crate) catalog: TapeCatalog,
    bases: Arc<Mutex<BaseTapes>>,
}

/// The tapes of bases, which must not be written over.
#[derive(Debug, Default)]
struct BaseTapes {
    /// The tape that the backup is written over first.
    replaced: Option<String>,
    kept: BTreeSet<String>,
}

impl PartialEq for TapeSpec {
    fn eq(&self, other: &Self) -> bool {
        self.drive.name() == other.drive.name()
    }
}

impl Eq for TapeSpec {}

impl TapeSpec {
    /// A drive with the choices that hold if none is made.
    pub fn new(storages: &Storages, drive: &OsStr) -> Self {
        Self {
            drive: NamedDrive::new(storages, drive),
            options: TapeOptions::default(),
            change: storages.media_change().clone(),
            catalog: TapeCatalog::of(storages),
            bases: Arc::default(),
        }
    }

    /// Returns the tape in the drive, if its data will be written over.
    pub(crate) fn replaced(&self) -> Option<String> {
        self.bases.locked().replaced.clone()
    }

    pub(super) fn note_first(&self, first: &LoadedTape) {
        let is_replaced = first.block == 0;
        self.bases.locked().replaced = is_replaced.then(|| first.name.clone());
    }

    /// Notes the tapes of the bases: they are not written over later on.
    pub(crate) fn keep(&self, tapes: BTreeSet<String>) {
        self.bases.locked().kept = tapes;
    }

    /// Name in messages.
    pub fn name(&self) -> String {
        format!("\"tape:{}\"", self.drive.name().display())
    }

    /// Returns the bytes of a file above which it is stored in pieces.
    pub fn whole_bytes(&self) -> u64 {
        WHOLE_BYTES.min(self.options.part_bytes())
    }
}

/// How far a backup on tapes is.
#[derive(Default)]
pub(super) struct TapeProgress {
    /// The first tape, until it is written.
    pub(super) first: Option<LoadedTape>,
    /// Names of tapes with whole parts.
    pub(super) tapes: Vec<String>,
    /// The manifest so far.
    pub(super) pages: PageSpool,
    /// Sentences about drives and tapes, for the report.
    pub(super) notes: Vec<String>,
}

/// The length of records, if the drive takes it.
const RECORD_BYTES: u32 = 1 << 20;
/// How often another tape is asked for, if that in the drive must not be written.
const MOST_ASKED: u32 = 5;
/// The name that `--overwrite` has for data of other programs.
pub(super) const FOREIGN: &str = "foreign";

/// A tape in an open drive that may be written.
pub(super) struct LoadedTape {
    pub(super) drive: Box<dyn RingDrive>,
    /// Name of the tape.
    pub(super) name: String,
    /// Number of the record or mark that is written first.
    pub(super) block: u64,
    /// Length of records.
    pub(super) record_bytes: u32,
    /// The lowest speed of the drive in bytes a second; 0 if it is not known.
    pub(super) lowest_rate: f64,
    /// Bytes of the buffers before the drive together.
    pub(super) buffer_bytes: u64,
}

impl LoadedTape {
    /// Opens the drive and looks at its tape, which becomes volume `volume` of backup `id`.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if the tape has data that must not be lost; those of the drive.
    pub(super) fn open(spec: &TapeSpec, id: &str, volume: u32) -> Result<Self> {
        let mut drive = spec.drive.open(TapeUse::Write)?;
        let status = drive.status().map_err(DriveError::into_error)?;
        let refused = |because: &str| {
            Error::new(
                ErrorKind::Permission,
                format!("cannot write to {}", spec.name()),
            )
            .because(because.to_owned())
        };
        if status.write_protected {
            let hint = "move the switch of the cartridge, or use another tape";
            return Err(refused("the tape is write protected").hint(hint));
        }
        if status.block_bytes != 0 {
            let hint = "`mt -f DEVICE setblk 0` makes a record as long as what is written";
            return Err(refused("the drive has records of a fixed length").hint(hint));
        }
        let begin = read_begin(&mut *drive).map_err(DriveError::into_error)?;
        let name = usable_name(&spec.options, &begin, id, volume)
            .map_err(|reason| must_not_write(spec, reason))?;
        if spec.bases.locked().kept.contains(&name) {
            let reason = format!("this backup builds on one that is on tape {name:?}");
            return Err(must_not_write(spec, reason));
        }
        let is_appended = spec.options.append && volume == 1 && has_backup(&begin);
        let block = if is_appended {
            go_to_end(&mut *drive).map_err(|error| cannot_append(spec, error))?
        } else {
            drive.rewind().map_err(DriveError::into_error)?;
            0
        };
        let record_bytes = drive.limits().most_bytes.min(RECORD_BYTES);
        let lowest_rate = drive.lowest_rate();
        let usual_bytes = || drive.usual_buffer_bytes();
        let buffer_bytes = spec.options.buffer_bytes.unwrap_or_else(usual_bytes);
        Ok(Self {
            drive,
            name,
            block,
            record_bytes,
            lowest_rate,
            buffer_bytes,
        })
    }

    /// Asks for a tape until one is in the drive that may be written.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if none comes; those of the drive and of the change command.
    pub(super) fn ask(spec: &TapeSpec, id: &str, volume: u32, reason: &str) -> Result<Self> {
        let mut request = ChangeRequest {
            action: ChangeAction::Next,
            drive: spec.drive.name().display().to_string(),
            set: id.to_owned(),
            volume,
            label: own_name(id, volume),
            reason: reason.to_owned(),
        };
        for _ in 0..MOST_ASKED {
            if !spec.change.is_possible() || spec.change.ask(&request)? == Changed::No {
                break;
            }
            match Self::open(spec, id, volume) {
                Ok(tape) => return Ok(tape),
                Err(error) => request.reason = error.line(),
            }
        }
        let message = format!("could not continue on tape {volume}");
        let error = Error::new(ErrorKind::Full, message).because(request.reason);
        Err(if spec.change.is_possible() {
            error
        } else {
            error.hint("use --change-command PROGRAM, or a terminal, so that tapes can be changed")
        })
    }

    /// Returns the label for volume `volume` of backup `id`.
    pub(super) fn label(
        &self,
        options: &TapeOptions,
        id: &str,
        volume: u32,
        keys: &[String],
    ) -> TapeLabel {
        TapeLabel {
            tape: self.name.clone(),
            set: id.to_owned(),
            volume,
            time: utc_second(Timestamp::now()),
            record_bytes: self.record_bytes,
            expires: options.expires.map(utc_second).unwrap_or_default(),
            keys: keys.to_vec(),
            last_trailer: String::new(),
        }
    }
}

/// The name of a tape that had none: the backup and the number.
fn own_name(id: &str, volume: u32) -> String {
    format!("{id}-{volume}")
}

fn has_backup(begin: &TapeBegin) -> bool {
    matches!(begin, TapeBegin::Labelled(label) if !label.set.is_empty())
}

/// Returns the name of a tape that may be written, or why it must not.
fn usable_name(
    options: &TapeOptions,
    begin: &TapeBegin,
    id: &str,
    volume: u32,
) -> std::result::Result<String, String> {
    let is_named = |name: &str| options.overwrite.iter().any(|named| named == name);
    match begin {
        TapeBegin::Blank => Ok(own_name(id, volume)),
        TapeBegin::Foreign if is_named(FOREIGN) => Ok(own_name(id, volume)),
        TapeBegin::Foreign => Err("it has data of another program".to_owned()),
        TapeBegin::Labelled(label) if label.set == id => {
            let (tape, number) = (&label.tape, label.volume);
            Err(format!("tape {tape:?} is volume {number} of this backup"))
        }
        TapeBegin::Labelled(label) => {
            let tape = label.tape.clone();
            let is_free = label.set.is_empty() || is_named(&tape) || label.is_expired();
            let is_appended = options.append && volume == 1;
            if is_appended {
                return match outlives(options, label) {
                    Some(reason) => Err(reason),
                    None => Ok(tape),
                };
            }
            match is_free {
                true => Ok(tape),
                false => Err(format!("tape {tape:?} has backup {:?}", label.set)),
            }
        }
    }
}

/// A tape may be written again when its label says so: a backup that is kept longer does not belong behind it.
fn outlives(options: &TapeOptions, label: &TapeLabel) -> Option<String> {
    let end: Timestamp = label.expires.parse().ok()?;
    let is_shorter = options.expires.is_some_and(|own| own <= end);
    (!is_shorter).then(|| {
        let (tape, expires) = (&label.tape, &label.expires);
        format!(
            "tape {tape:?} may be written again from {expires} on, and the backup is kept longer"
        )
    })
}

fn must_not_write(spec: &TapeSpec, reason: String) -> Error {
    let message = format!("cannot write to {}", spec.name());
    Error::new(ErrorKind::Exists, message).because(reason).hint(
        "use another tape, --append, or --overwrite NAME; `fullbore tape list` prints the name",
    )
}

fn cannot_append(spec: &TapeSpec, error: DriveError) -> Error {
    let error = error.into_error();
    let message = format!("cannot append to the tape in {}", spec.name());
    Error::new(error.kind, message)
        .because(error.line())
        .hint("the end of its data must be readable: use another tape, or --overwrite NAME")
}

/// Goes behind the last mark, and returns its place. The record before that mark must be readable.
fn go_to_end(drive: &mut dyn Drive) -> DriveResult<u64> {
    drive.space(Space::EndOfData)?;
    let end = drive.position()?.next;
    drive.space(Space::Marks(-1))?;
    let mark = drive.position()?.next;
    if mark + 1 != end {
        // A backup was cut off: its last records have no mark behind them.
        drive.space(Space::EndOfData)?;
        drive.mark()?;
        return Ok(drive.position()?.next);
    }
    drive.space(Space::Records(-1))?;
    let mut buffer = vec![0; drive.limits().most_bytes as usize];
    match drive.read(&mut buffer) {
        Ok(ReadOutcome::Record(_)) => {}
        // It is a mark behind a mark, or a longer record of another program.
        Ok(_) => {}
        Err(error) if error.fault == Fault::RecordTooLong => {}
        Err(error) => return Err(error),
    }
    drive.locate(end)?;
    Ok(end)
}
