//! What a command of another host prints here goes to that host: its lines, and the numbers of its report.

use super::far::PEER;
use crate::cli::{command_line::program, command_words::CommandWords, html_report::FAR_NUMBERS};
use fullbore_format::error::{Error, Result};
use fullbore_platform::{debug, write::anonymous_file};
use fullbore_storage::wire::{PeerSide, ServiceNumber};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    os::fd::AsRawFd,
    process,
};

/// The numbers of the report of a command, until they are sent to the host that has asked for it.
#[derive(Debug)]
pub(super) struct FarReport(File);

impl FarReport {
    /// Has the command write the numbers of its report to a file without a name, if the other host wants one: `--report peer:`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn of(words: &mut Vec<OsString>) -> Result<Option<Self>> {
        let read = CommandWords::read(program(), words.iter().cloned());
        if read.value("report") != Some(OsStr::new(PEER)) {
            return Ok(None);
        }
        let file = anonymous_file(&env::temp_dir())
            .map_err(|error| Error::io("could not make a file for the report", error))?;
        let path = format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd());
        let path = OsString::from(format!("{FAR_NUMBERS}{path}"));
        *words = read.with_value("report", &path).into_words_with(&[]);
        Ok(Some(Self(file)))
    }

    /// Sends the report, unless the command has failed and there is none.
    ///
    /// # Errors
    /// The system's; those of the other side.
    pub(super) fn send(mut self, peer: &PeerSide) -> Result<()> {
        let failed = |error| Error::io("could not read the report", error);
        let mut page = Vec::new();
        self.0.rewind().map_err(failed)?;
        self.0.read_to_end(&mut page).map_err(failed)?;
        if page.is_empty() {
            return Ok(());
        }
        peer.ask(ServiceNumber::REPORT, &page, 0).map(drop)
    }
}

/// Bytes of the output of a command that are sent at once.
const OUTPUT_BYTES: usize = 64 << 10;

/// Sends all lines of a command to the other side, as many at once as there are. Reads on if that is gone, so that the command ends.
pub(super) fn forward(from: impl Read, is_error: bool, peer: &PeerSide) {
    let mut source = BufReader::with_capacity(OUTPUT_BYTES, from);
    let mut waiting = Vec::new();
    let print = |bytes: &[u8]| {
        if let Err(error) = peer.print(is_error, bytes) {
            debug(|| error.line());
        }
    };
    loop {
        let read = match source.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok([]) | Err(_) => break,
            Ok(bytes) => {
                waiting.extend_from_slice(bytes);
                bytes.len()
            }
        };
        source.consume(read);
        let lines = waiting.iter().rposition(|byte| *byte == b'\n');
        let end = lines.map_or(0, |last| last + 1);
        // Whole lines, so that those of both streams do not mix. A line without an end is cut.
        if end > 0 || waiting.len() >= OUTPUT_BYTES {
            let rest = waiting.split_off(if end > 0 { end } else { waiting.len() });
            print(&waiting);
            waiting = rest;
        }
    }
    if !waiting.is_empty() {
        print(&waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{args, command_line::keep_program};

    #[test]
    fn a_report_is_sent_only_if_the_option_asks_for_it() {
        keep_program(args::program(), args::program);
        for (line, is_wanted) in [
            ("backup --report peer: --to peer:/b /srv", true),
            ("backup --to peer:/b --report=peer: /srv", true),
            ("backup --to peer:/b --report r.html /srv", false),
            ("backup --to peer:/b -- --report peer:", false),
        ] {
            let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let report = FarReport::of(&mut words).unwrap();
            assert_eq!(report.is_some(), is_wanted, "{line}");
            let words = words.join(OsStr::new(" ")).into_string().unwrap();
            assert_eq!(
                words.contains("--report=numbers:/proc/"),
                is_wanted,
                "{words}"
            );
        }
    }
}
