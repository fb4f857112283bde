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
/// So many marks are written by one command, at most: each takes space.
const MOST_MARKS: u32 = 64;

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
        let mut letter = [b'\n'];
        while letter[0] == b'\n' {
            if self.input.read(&mut letter)? == 0 {
                return Ok(None);
            }
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
            5 if times <= MOST_MARKS => Operation::MarksAndWait(times),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimClock, SimDevice, SimSettings};
    use proptest::prelude::*;

    /// Serves a client with a small cartridge. Returns the answers, and the length of the cartridge.
    fn served(input: &[u8]) -> (Vec<u8>, u64) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cartridge");
        let settings = SimSettings {
            capacity_bytes: 1 << 20,
            warning_bytes: 1 << 16,
            ..SimSettings::default()
        };
        let made = SimDevice::create(&path, settings, SimClock::virtual_time()).unwrap();
        Box::new(made).close().unwrap();
        let mut output = Vec::new();
        // An error ends the session; the client is gone.
        let _ = serve_rmt(&mut &input[..], &mut output, |_| SimDevice::open(&path));
        (output, std::fs::metadata(&path).unwrap().len())
    }

    fn text(input: &[u8]) -> String {
        String::from_utf8_lossy(&served(input).0).into_owned()
    }

    #[test]
    fn a_client_that_asks_for_too_much_is_refused() {
        assert_eq!(
            text(b"Ost0\n2\nW3\nabcI6\n1\nR3\nCst0\n"),
            "A0\nA3\nA1\nA3\nabcA0\n"
        );
        for input in [
            &b"Ost0\n2\nW99999999999\n"[..],
            b"Ost0\n2\nW-1\n",
            b"Ost0\n2\nR99999999999999999999\n",
            b"Ost0\n2\nR-5\n",
            b"Ost0\n2\nW1000\nshort",
            b"Ost0\n2\nI5\n",
        ] {
            assert_eq!(text(input), "A0\n", "{input:?}");
        }
        // No command has so many marks, or goes before the begin.
        let (told, bytes) =
            served(b"Ost0\n2\nI5\n4294967295\nI2\n4000000000\nI4\n-9\nI22\n-1\nI1\n7\n");
        let told = String::from_utf8(told).unwrap();
        let refusals = told.lines().filter(|line| line.starts_with('E')).count();
        assert!(refusals >= 3 && bytes < 1 << 16, "{told} {bytes}");
        assert_eq!(text(b"Q1\n"), "E22\ninvalid argument\n");
        assert_eq!(text(b"W1\nx"), "E9\nbad file descriptor\n");
        // Each would be a call within a call.
        assert_eq!(text(&vec![b'\n'; 10 << 20]), "");
        assert_eq!(text(&vec![b'O'; 10 << 20]).lines().next(), Some("A0"));
    }

    proptest! {
        #[test]
        fn no_client_makes_a_panic_or_a_tape_that_is_too_long(
            commands in prop::collection::vec(
                prop_oneof![
                    any::<Vec<u8>>(),
                    (0u8..30, any::<i64>()).prop_map(|(code, count)| format!("I{code}\n{count}\n").into_bytes()),
                    (0u8..30, -3i64..70).prop_map(|(code, count)| format!("I{code}\n{count}\n").into_bytes()),
                    (0usize..70_000).prop_map(|len| [format!("W{len}\n").into_bytes(), vec![7; len]].concat()),
                    (0u32..2_000_000).prop_map(|len| format!("R{len}\n").into_bytes()),
                    any::<i64>().prop_map(|offset| format!("L{offset}\n0\n").into_bytes()),
                ],
                0..40,
            ),
        ) {
            let input = [b"Onst0\n2\n".to_vec(), commands.concat()].concat();
            let (_, bytes) = served(&input);
            prop_assert!(bytes < 2 << 20);
        }
    }
}
