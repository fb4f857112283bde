//! `fullbore tape`: the state of a drive, labels, what is on a tape.

use super::tape_probe;
use crate::cli::{
    options::PLAIN_EXIT_CODES,
    output::{aside, printed, told},
    report,
};
use clap::{Args, Subcommand};
use fullbore_engine::report::damage::missing_end;
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    text::{self, size},
};
use fullbore_repository::{archive::Archive, tape_drive::NamedDrive};
use fullbore_storage::Storages;
use fullbore_tape::{
    Drive, DriveError, DriveResult, Fault, RecordOutcome, RingDrive, Space, TapeBegin, TapeLabel,
    TapeUse, is_tape_name, read_begin, read_label,
};
use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    io::Write,
    os::unix::ffi::OsStrExt,
};

/// `fullbore tape`.
#[derive(Debug, Args)]
pub(in crate::cli) struct TapeArgs {
    #[command(subcommand)]
    what: TapeCommand,
}

impl TapeArgs {
    /// Returns whether the command prints JSON.
    pub(in crate::cli) fn has_json(&self) -> bool {
        matches!(
            self.what,
            TapeCommand::Status(_) | TapeCommand::List(_) | TapeCommand::Probe { .. }
        )
    }
}

/// The task for a tape.
#[derive(Debug, Subcommand)]
enum TapeCommand {
    /// Print the state of a drive, without a move of the tape
    #[command(after_help = PLAIN_EXIT_CODES)]
    Status(DriveArgs),
    /// Give a tape a name, which makes it empty
    #[command(after_help = PLAIN_EXIT_CODES)]
    Label {
        #[command(flatten)]
        drive: DriveArgs,
        /// The name, as on the sticker of the tape
        #[arg(value_name = "NAME", value_parser = tape_name)]
        name: String,
        #[command(flatten)]
        overwrite: OverwriteArgs,
    },
    /// Print the label of a tape, and the files between its marks
    #[command(after_help = PLAIN_EXIT_CODES)]
    List(DriveArgs),
    /// Fill the catalog of this host from the newest backup on a tape
    ///
    /// Use it on a host that did not make the backup, with the last tape of the backup. With the
    /// catalog, list, find, diff and restore --plan need no tape.
    #[command(after_help = PLAIN_EXIT_CODES)]
    Scan(DriveArgs),
    /// Make a tape empty and keep its name
    #[command(after_help = PLAIN_EXIT_CODES)]
    Erase {
        #[command(flatten)]
        drive: DriveArgs,
        #[command(flatten)]
        overwrite: OverwriteArgs,
        /// Erase the whole medium, which takes hours
        #[arg(long)]
        long: bool,
    },
    /// Measure a drive with a tape, which makes the tape empty
    ///
    /// Prints the limits of records, the rate, how long marks, stops and ways take, whether the drive tells which
    /// records are only in its buffer, and with --fill the room behind the early warning.
    #[command(after_help = PLAIN_EXIT_CODES)]
    Probe {
        #[command(flatten)]
        drive: DriveArgs,
        #[command(flatten)]
        overwrite: OverwriteArgs,
        /// Bytes to write
        #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
        size: u64,
        /// Write until the tape is full, which takes hours
        #[arg(long)]
        fill: bool,
    },
}

/// A drive.
#[derive(Debug, Args)]
struct DriveArgs {
    /// The drive, such as /dev/nst0
    ///
    /// Use the name with n: the other one rewinds the tape at each close. sim:FILE is a simulated
    /// drive, see `fullbore simtape`. ssh://HOST/dev/nst0 is a drive of another host. tape: before
    /// the name is allowed.
    #[arg(value_name = "DRIVE")]
    drive: OsString,
    #[arg(from_global)]
    json: bool,
}

/// Which tape may be overwritten.
#[derive(Debug, Args)]
struct OverwriteArgs {
    /// Write over the tape with this name, or over other data (foreign)
    ///
    /// A tape is written only if it is blank, or if its name is given here. Data without a label of
    /// fullbore has the name "foreign".
    #[arg(long, value_name = "NAME")]
    overwrite: Option<String>,
}

pub(in crate::cli) fn run(args: TapeArgs, storages: &Storages) -> Result<u8> {
    match args.what {
        TapeCommand::Scan(drive) => scan(&drive, storages),
        TapeCommand::Status(drive) => status(&drive, storages),
        TapeCommand::List(drive) => list(&drive, storages),
        TapeCommand::Label {
            drive,
            name,
            overwrite,
        } => {
            let mut open = drive.open(storages, TapeUse::Write)?;
            overwrite.check(&mut *open, &drive)?;
            write_label(&mut *open, name.clone())?;
            end(open)?;
            said(&format!("the tape is empty and has the name {name:?}"))
        }
        TapeCommand::Erase {
            drive,
            overwrite,
            long,
        } => erase(&drive, &overwrite, long, storages),
        TapeCommand::Probe {
            drive,
            overwrite,
            size,
            fill,
        } => {
            let mut open = drive.open(storages, TapeUse::Write)?;
            let name = overwrite.check(&mut *open, &drive)?;
            let bytes = if fill { u64::MAX } else { size };
            let figures = tape_probe::probe(&mut *open, bytes);
            let figures = figures.map_err(DriveError::into_error)?;
            write_label(&mut *open, name)?;
            end(open)?;
            printed(|out| tape_probe::print(&figures, drive.json, out).map(|()| 0))
        }
    }
}

/// Reads the name of a tape.
fn tape_name(text: &str) -> Result<String, String> {
    let is_name = is_tape_name(text) && text != FOREIGN;
    is_name
        .then(|| text.to_owned())
        .ok_or("it has letters, digits, ., _ and -, at most 32 of them".to_owned())
}

/// The name that --overwrite has for data without a label.
const FOREIGN: &str = "foreign";
/// The name of a tape that had none.
const UNNAMED: &str = "unnamed";

impl DriveArgs {
    fn name(&self) -> &OsStr {
        let bytes = self.drive.as_bytes();
        OsStr::from_bytes(bytes.strip_prefix(b"tape:").unwrap_or(bytes))
    }

    fn open(&self, storages: &Storages, usage: TapeUse) -> Result<Box<dyn RingDrive>> {
        NamedDrive::new(storages, self.name()).open(usage)
    }
}

impl OverwriteArgs {
    /// Refuses a tape that has data, unless it was named. Returns its name.
    fn check(&self, drive: &mut dyn Drive, args: &DriveArgs) -> Result<String> {
        let begin = read_begin(drive).map_err(DriveError::into_error)?;
        let (name, is) = match begin {
            TapeBegin::Blank => return Ok(UNNAMED.to_owned()),
            TapeBegin::Labelled(label) => {
                (label.tape.clone(), format!("it is tape {:?}", label.tape))
            }
            TapeBegin::Foreign => (
                FOREIGN.to_owned(),
                "it has data of another program".to_owned(),
            ),
        };
        if self.overwrite.as_ref() != Some(&name) {
            let message = format!(
                "cannot write to the tape in {}",
                quoted(args.drive.as_bytes())
            );
            return Err(Error::new(ErrorKind::Exists, message)
                .because(is)
                .hint(format!("--overwrite {name} writes over it")));
        }
        Ok(if name == FOREIGN {
            UNNAMED.to_owned()
        } else {
            name
        })
    }
}

/// Writes a label without a set at the begin of a tape. All other data is gone.
fn write_label(drive: &mut dyn Drive, name: String) -> Result<()> {
    let label = TapeLabel {
        tape: name,
        time: text::utc_second(jiff::Timestamp::now()),
        record_bytes: drive.limits().most_bytes.min(1 << 20),
        ..TapeLabel::default()
    };
    let record = label.to_record()?;
    let fits = write_first(drive, &record).map_err(DriveError::into_error)?;
    if !fits {
        let message = "could not write the label: the tape is full";
        return Err(Error::new(ErrorKind::Full, message));
    }
    Ok(())
}

/// Writes a record and a mark at the begin of a tape. Returns whether both were taken.
fn write_first(drive: &mut dyn Drive, record: &[u8]) -> DriveResult<bool> {
    drive.rewind()?;
    if drive.record(record)? == RecordOutcome::Full || drive.mark()? == RecordOutcome::Full {
        return Ok(false);
    }
    drive.flush()?;
    Ok(true)
}

fn scan(drive: &DriveArgs, storages: &Storages) -> Result<u8> {
    let archive = Archive::scan_tape(storages, drive.name())?;
    let tapes: Vec<_> = archive.root.tapes().into_values().collect();
    let line = format!(
        "backup {} on tapes {} is in the catalog",
        archive.root.id,
        tapes.join(", ")
    );
    if let Some(error) = missing_end(&archive.root) {
        aside(report::error(&error));
    }
    said(&line)
}

fn erase(
    drive: &DriveArgs,
    overwrite: &OverwriteArgs,
    long: bool,
    storages: &Storages,
) -> Result<u8> {
    let usage = if long { TapeUse::Erase } else { TapeUse::Write };
    let mut open = drive.open(storages, usage)?;
    let name = overwrite.check(&mut *open, drive)?;
    write_label(&mut *open, name)?;
    if long {
        open.erase().map_err(DriveError::into_error)?;
    }
    end(open)?;
    said("the tape is empty")
}

/// Rewinds and closes.
fn end(mut drive: Box<dyn RingDrive>) -> Result<()> {
    let rewound = drive.rewind();
    drive.close().and(rewound).map_err(DriveError::into_error)
}

fn said(line: &str) -> Result<u8> {
    told(|out| text::line(out, line).map(|()| 0))
}

fn status(args: &DriveArgs, storages: &Storages) -> Result<u8> {
    let mut drive = args.open(storages, TapeUse::Ask)?;
    let status = drive.status().map_err(DriveError::into_error)?;
    let limits = drive.limits();
    let place = drive.position().ok();
    drive.close().map_err(DriveError::into_error)?;
    let state = match (status.no_medium, status.online) {
        (true, _) => "no tape",
        (false, true) => "ready",
        (false, false) => "not ready",
    };
    let facts = [
        (status.write_protected, "write protected"),
        (status.at_start, "at the begin"),
        (status.at_end_of_data, "at the end of the data"),
        (status.near_end, "near the end of the tape"),
        (status.cleaning, "asks to be cleaned"),
    ];
    let facts: Vec<&str> = facts
        .into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, word)| word)
        .collect();
    printed(|out| {
        if args.json {
            let next = place.map(|place| place.next);
            let value = json!({
                "type": "result", "state": state, "facts": facts, "place": next, "fixed_record_bytes": status.block_bytes,
                "least_record_bytes": limits.least_bytes, "most_record_bytes": limits.most_bytes, "density": status.density,
            });
            text::json(out, &value)?;
            return Ok(0);
        }
        let all: Vec<&str> = std::iter::once(state)
            .chain(facts.iter().copied())
            .collect();
        text::line(out, &all.join(", "))?;
        if let Some(place) = place {
            text::line(out, &format!("at record {}", place.next))?;
        }
        let most = text::binary_bytes(limits.most_bytes.into());
        let fixed = match status.block_bytes {
            0 => "of any length".to_owned(),
            bytes => format!("of {bytes} bytes only"),
        };
        text::line(
            out,
            &format!(
                "records {fixed}, up to {most}; density code {:#04x}",
                status.density
            ),
        )?;
        Ok(0)
    })
}

/// A file between two marks.
struct TapeFileLine {
    number: u64,
    /// Its first record; `None` if the drive has no places.
    block: Option<u64>,
    records: Option<u64>,
    label: Option<TapeLabel>,
}

fn list(args: &DriveArgs, storages: &Storages) -> Result<u8> {
    let mut drive = args.open(storages, TapeUse::Read)?;
    let files = files(&mut *drive).map_err(DriveError::into_error)?;
    end(drive)?;
    printed(|out| {
        if !files.is_empty() && !args.json {
            text::line(out, " FILE       BLOCK     RECORDS  CONTENT")?;
        }
        for file in &files {
            print_file(file, args.json, out)?;
        }
        if files.is_empty() && !args.json {
            text::line(out, "the tape is blank")?;
        }
        Ok(0)
    })
}

/// Goes over the tape from mark to mark. Each file costs its first record and a way.
fn files(drive: &mut dyn Drive) -> DriveResult<Vec<TapeFileLine>> {
    drive.rewind()?;
    let mut files = Vec::new();
    loop {
        let block = drive.position().ok().map(|place| place.next);
        let label = match read_label(drive)? {
            TapeBegin::Blank => return Ok(files),
            TapeBegin::Labelled(label) => Some(label),
            TapeBegin::Foreign => None,
        };
        if let (Some(block), None) = (block, &label) {
            // The read may have passed the mark that ends the file.
            drive.locate(block)?;
        }
        let has_mark = match drive.space(Space::Marks(1)) {
            Ok(()) => true,
            // No mark follows: these are the last records.
            Err(error) if error.fault == Fault::Medium => false,
            Err(error) => return Err(error),
        };
        let behind = drive.position().ok().map(|place| place.next);
        let end = behind.map(|behind| behind - u64::from(has_mark));
        files.push(TapeFileLine {
            number: files.len() as u64,
            block,
            records: end.zip(block).map(|(end, block)| end.saturating_sub(block)),
            label,
        });
        if !has_mark {
            return Ok(files);
        }
    }
}

fn print_file(file: &TapeFileLine, is_json: bool, out: &mut dyn Write) -> Result<()> {
    if is_json {
        let label = file
            .label
            .as_ref()
            .map(|label| json!(label))
            .unwrap_or(Value::Null);
        let value = json!({"type": "tape_file", "file": file.number, "block": file.block, "records": file.records, "label": label});
        return text::json(out, &value);
    }
    let content = match &file.label {
        Some(label) if label.set.is_empty() => format!("tape {:?}, {}", label.tape, label.time),
        Some(label) => format!(
            "tape {:?}, volume {} of set {}, {}",
            label.tape, label.volume, label.set, label.time
        ),
        None => "data".to_owned(),
    };
    let known = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let (block, records) = (known(file.block), known(file.records));
    let line = format!(
        "{:>5}  {block:>10}  {records:>10}  {}",
        file.number,
        text::shown(&content)
    );
    text::line(out, &line)
}
