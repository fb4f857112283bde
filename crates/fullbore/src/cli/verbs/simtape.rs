//! `fullbore simtape`: a simulated tape drive for tests, also of other programs.

use crate::cli::{
    options::PLAIN_EXIT_CODES,
    output::{aside, plain_output, printed},
};
use clap::{Args, ValueHint};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{self, counted, size},
};
use fullbore_tape::{
    Device, Drive, DriveError, RecordOutcome, TapeDrive,
    sim::{ClockKind, MotorCounters, SimClock, SimDevice, SimSettings, serve_rmt},
};
use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

/// `fullbore simtape`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(in crate::cli) struct SimtapeArgs {
    /// The cartridge, which is made if it is missing
    ///
    /// The file holds the parameters of the drive, its counters and the records. Without --rmt and
    /// --stdin, parameters and counters are printed.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Serve rmt on standard input and output, for GNU tar and dump
    ///
    /// A script `exec fullbore simtape FILE --rmt` is the remote shell of these programs:
    /// `tar --rsh-command=SCRIPT -cf localhost:st0 DIR`, `RSH=SCRIPT dump -f localhost:st0`. A name
    /// that begins with n, such as nst0, is not rewound when it is closed.
    #[arg(long)]
    rmt: bool,
    /// Write standard input to the tape, for mbuffer
    #[arg(long, conflicts_with = "rmt")]
    stdin: bool,
    /// The length of the records of --stdin
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size::parse)]
    record_size: u64,
    /// The speeds of a new drive: lto-7, lto-8 or lto-9
    #[arg(long, value_name = "GENERATION")]
    drive: Option<String>,
    /// A parameter of a new drive, such as capacity-bytes=30G (repeatable)
    ///
    /// All parameters are printed by `fullbore simtape FILE`. clock=virtual counts the time that the
    /// drive takes and does not wait. faults=write@120,reset@300 fails these records.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Words that a program adds to its remote shell (ignored)
    #[arg(
        value_name = "WORD",
        hide = true,
        allow_hyphen_values = true,
        trailing_var_arg = true
    )]
    words: Vec<String>,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

pub(in crate::cli) fn run(args: SimtapeArgs) -> Result<u8> {
    let settings = args.settings()?;
    let simtape = Simtape {
        path: args.file,
        settings,
        set: args.set,
        is_quiet: args.quiet,
    };
    if args.rmt {
        return simtape.serve();
    }
    if args.stdin {
        return simtape.take_standard_input(args.record_size);
    }
    simtape.print(args.json)
}

impl SimtapeArgs {
    /// The parameters of a new cartridge: time is that of the machine, unless it is set.
    fn settings(&self) -> Result<SimSettings> {
        let mut settings = SimSettings {
            clock: ClockKind::Real,
            ..SimSettings::default()
        };
        if let Some(generation) = &self.drive {
            let set = settings.set_generation(generation);
            set.map_err(|reason| refused("--drive", generation, reason))?;
        }
        for assignment in &self.set {
            let set = settings.set(assignment);
            set.map_err(|reason| refused("--set", assignment, reason))?;
        }
        Ok(settings)
    }
}

fn refused(option: &str, value: &str, reason: String) -> Error {
    Error::new(ErrorKind::Usage, format!("cannot use {option} {value:?}")).because(reason)
}

struct Simtape {
    path: PathBuf,
    settings: SimSettings,
    /// Changes of the parameters of a cartridge that exists.
    set: Vec<String>,
    is_quiet: bool,
}

impl Simtape {
    fn open(&self) -> io::Result<SimDevice> {
        let clock = match self.settings.clock {
            ClockKind::Real => SimClock::real(),
            ClockKind::Virtual => SimClock::virtual_time(),
        };
        match SimDevice::create(&self.path, self.settings.clone(), clock) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                SimDevice::open(&self.path)
            }
            other => other,
        }
    }

    fn opened(&self) -> Result<SimDevice> {
        self.open().map_err(|error| self.failed("open", error))
    }

    fn failed(&self, action: &str, error: io::Error) -> Error {
        Error::io(format!("could not {action} {:?}", self.path), error)
    }

    fn serve(&self) -> Result<u8> {
        plain_output(|out| {
            let served = serve_rmt(&mut io::stdin().lock(), out, |_| self.open());
            served.map_err(|error| self.failed("serve", error))?;
            Ok(0)
        })?;
        self.report()?;
        Ok(0)
    }

    fn take_standard_input(&self, record_bytes: u64) -> Result<u8> {
        let mut drive = TapeDrive::new(self.opened()?, self.path.to_string_lossy());
        let mut input = io::stdin().lock();
        let mut record = Vec::new();
        loop {
            record.clear();
            let read = (&mut input).take(record_bytes).read_to_end(&mut record);
            read.map_err(|error| Error::io("could not read standard input", error))?;
            if record.is_empty() {
                break;
            }
            let outcome = drive.record(&record).map_err(DriveError::into_error)?;
            if outcome == RecordOutcome::Full {
                let message = format!("could not write to {:?}: the tape is full", self.path);
                return Err(Error::new(ErrorKind::Full, message));
            }
        }
        Box::new(drive).close().map_err(DriveError::into_error)?;
        self.report()?;
        Ok(0)
    }

    /// Prints what the drive did, on standard error.
    fn report(&self) -> Result<()> {
        if !self.is_quiet {
            let device = self.opened()?;
            aside(format_args!(
                "{}: {}",
                shown(&self.path),
                line(device.counters())
            ));
        }
        Ok(())
    }

    fn print(&self, json: bool) -> Result<u8> {
        let mut device = Box::new(self.opened()?);
        for assignment in &self.set {
            let set = device.settings_mut().set(assignment);
            set.map_err(|reason| refused("--set", assignment, reason))?;
        }
        let (settings, counters) = (device.settings().clone(), device.counters().clone());
        let blocks = device.blocks();
        let closed = device.close();
        closed.map_err(|error| self.failed("close", error))?;
        printed(|out| {
            let all = serde_json::json!({"type": "result", "settings": settings, "counters": counters, "records_and_marks": blocks});
            if json {
                text::json(out, &all)?;
                return Ok(0);
            }
            text::line(
                out,
                &format!("{} records and marks; {}", blocks, line(&counters)),
            )?;
            let settings = all["settings"].as_object().into_iter().flatten();
            for (name, value) in settings {
                text::line(out, &format!("{name}={value}"))?;
            }
            Ok(0)
        })
    }
}

fn shown(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// What a drive did, on one line.
fn line(counters: &MotorCounters) -> String {
    format!(
        "{} written at {}, {}, {} found the buffer empty, {}",
        text::bytes(counters.written_bytes),
        size::rate(counters.written_bytes, counters.write_seconds),
        counted(counters.starts, "start"),
        counted(counters.found_empty, "write"),
        counted(counters.marks, "mark"),
    )
}
