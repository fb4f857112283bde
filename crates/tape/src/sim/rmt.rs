//! A server of the protocol `rmt`, by which GNU tar and dump use a drive of another host.
//!
//! Each command is a letter and a line, with a second line for some; the answer is `A` and a number, or
//! `E`, an error number and a line of text. Version 0 of the protocol: operations have the numbers of
//! Linux's `MTIOCTOP`.

use crate::device::{Device, Operation};
use rustix::io::Errno;
use std::io::{self, BufRead, ErrorKind, Read, Write};

/// The longest record that is taken from a client. A drive's own limit is lower.
const MOST_BYTES: usize = 16 << 20;

/// Serves commands until the input ends. `open` is called for each open with the name that the client
/// gave.
///
/// # Errors
/// Those of the streams.
pub fn serve_rmt<D: Device>(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    open: impl FnMut(&str) -> io::Result<D>,
) -> io::Result<()> {
    let mut session = RmtSession {
        input,
        open,
        device: None,
        rewinds: false,
    };
    loop {
        match session.command() {
            Ok(Some(answer)) => answer.write(output)?,
            Ok(None) => break,
            Err(error) if session.device.is_none() => return Err(error),
            Err(_) => break,
        }
    }
    session.close().map(drop)
}

/// An answer.
enum RmtAnswer {
    Number(u64),
    Data(Vec<u8>),
    Refusal(io::Error),
}

impl RmtAnswer {
    fn write(self, output: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Number(number) => writeln!(output, "A{number}")?,
            Self::Data(bytes) => {
                writeln!(output, "A{}", bytes.len())?;
                output.write_all(&bytes)?;
            }
            Self::Refusal(error) => {
                let number = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
                let text = fullbore_format::error::reason(&error);
                write!(output, "E{number}\n{text}\n")?;
            }
        }
        output.flush()
    }
}

impl From<io::Result<u64>> for RmtAnswer {
    fn from(result: io::Result<u64>) -> Self {
        result.map_or_else(Self::Refusal, Self::Number)
    }
}

struct RmtSession<'a, D, F> {
    input: &'a mut dyn BufRead,
    open: F,
    device: Option<D>,
    rewinds: bool,
}

impl<D: Device, F: FnMut(&str) -> io::Result<D>> RmtSession<'_, D, F> {
    /// Reads a command and performs it; `None` at the end of the input.
    fn command(&mut self) -> io::Result<Option<RmtAnswer>> {
        let mut letter = [0];
        if self.input.read(&mut letter)? == 0 {
            return Ok(None);
        }
        let answer = match letter[0] {
            b'O' => self.open_device()?,
            b'C' => {
                self.line()?;
                self.close().into()
            }
            b'R' => self.read()?,
            b'W' => self.write()?,
            b'I' => self.operation()?,
            b'L' => self.seek()?,
            b'\n' => return self.command(),
            _ => {
                self.line()?;
                RmtAnswer::Refusal(Errno::INVAL.into())
            }
        };
        Ok(Some(answer))
    }

    /// Reads a line of at most 4 KiB.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.input.take(4096).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn number(&mut self) -> io::Result<i64> {
        let line = self.line()?;
        line.trim()
            .parse()
            .map_err(|_| ErrorKind::InvalidData.into())
    }

    fn open_device(&mut self) -> io::Result<RmtAnswer> {
        let name = self.line()?;
        let _flags = self.line()?;
        self.close()?;
        // As /dev/st0 and /dev/nst0: all but the second rewind when they are closed.
        let last = name.rsplit('/').next().unwrap_or_default();
        self.rewinds = !last.starts_with('n');
        let opened = (self.open)(&name);
        Ok(opened
            .map(|device| self.device = Some(device))
            .map(|()| 0)
            .into())
    }

    fn close(&mut self) -> io::Result<u64> {
        let Some(mut device) = self.device.take() else {
            return Ok(0);
        };
        let rewound = match self.rewinds {
            true => device.operate(Operation::Rewind),
            false => Ok(()),
        };
        Box::new(device).close().and(rewound).map(|()| 0)
    }

    fn with_device(&mut self, call: impl FnOnce(&mut D) -> io::Result<u64>) -> RmtAnswer {
        match &mut self.device {
            Some(device) => call(device).into(),
            None => RmtAnswer::Refusal(Errno::BADF.into()),
        }
    }

    fn length(&mut self) -> io::Result<usize> {
        let length = usize::try_from(self.number()?).ok();
        length
            .filter(|length| *length <= MOST_BYTES)
            .ok_or(ErrorKind::InvalidData.into())
    }

    fn read(&mut self) -> io::Result<RmtAnswer> {
        let mut buffer = vec![0; self.length()?];
        let answer = self.with_device(|device| {
            let most = buffer.len().min(device.limits().most_bytes as usize);
            device.read(&mut buffer[..most]).map(|len| len as u64)
        });
        Ok(match answer {
            RmtAnswer::Number(len) => {
                buffer.truncate(len as usize);
                RmtAnswer::Data(buffer)
            }
            other => other,
        })
    }

    fn write(&mut self) -> io::Result<RmtAnswer> {
        let mut record = vec![0; self.length()?];
        self.input.read_exact(&mut record)?;
        Ok(self.with_device(|device| device.write(&record).map(|len| len as u64)))
    }

    fn operation(&mut self) -> io::Result<RmtAnswer> {
        let code = self.number()?;
        let count = self.number()?;
        let times = u32::try_from(count).unwrap_or(1);
        let operation = match code {
            1 => Operation::ForwardMarks(times),
            2 => Operation::BackwardMarks(times),
            3 => Operation::ForwardRecords(times),
            4 => Operation::BackwardRecords(times),
            5 => Operation::MarksAndWait(times),
            6 => Operation::Rewind,
            7 => Operation::Unload,
            8 => Operation::MarksAndWait(0),
            12 => Operation::EndOfData,
            22 => Operation::Seek(u64::from(times)),
            _ => return Ok(RmtAnswer::Refusal(Errno::INVAL.into())),
        };
        Ok(self.with_device(|device| device.operate(operation).map(|()| u64::from(times))))
    }

    /// A tape has no offsets: dump asks, and goes on.
    fn seek(&mut self) -> io::Result<RmtAnswer> {
        let _offset = self.line()?;
        let _whence = self.line()?;
        Ok(RmtAnswer::Number(0))
    }
}
