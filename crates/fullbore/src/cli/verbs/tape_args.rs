//! Options of a backup to tapes.

use crate::cli::{options::DESTINATION, values::days};
use clap::Args;
use fullbore_engine::tape::TapeOptions;
use fullbore_format::text::size;
use jiff::Timestamp;
use std::time::Duration;

/// A part is at least this long: a smaller one is little more than its description.
const LEAST_PART_BYTES: u64 = 1 << 20;
/// The buffers hold at least some records.
const LEAST_BUFFER_BYTES: u64 = 1 << 20;

/// What a backup to tapes may write, and how.
#[derive(Debug, Args)]
pub(in crate::cli) struct TapeToArgs {
    /// Write over the tape with this name (repeatable)
    ///
    /// Data of other programs has the name foreign. Without this option a tape is written if it is
    /// blank, if it has only a name, or if its backups are expired.
    #[arg(long, value_name = "NAME", help_heading = DESTINATION, hide_short_help = true)]
    overwrite: Vec<String>,
    /// Add the backup behind those on the tape
    #[arg(long, help_heading = DESTINATION, hide_short_help = true)]
    append: bool,
    /// Let the tapes be written again after this time, such as 30d
    ///
    /// Without it, they are written again only with --overwrite.
    #[arg(long, value_name = "TIME", value_parser = days, help_heading = DESTINATION, hide_short_help = true)]
    expires: Option<Duration>,
    /// End a part of a tape after this many bytes [default: 16G]
    ///
    /// Each part is an archive of its own. The least is 1M.
    #[arg(long, value_name = "SIZE", value_parser = part_size, help_heading = DESTINATION, hide_short_help = true)]
    part_size: Option<u64>,
    /// Size of the buffers before a drive, beside --memory
    ///
    /// One half waits to be written, the other half is what the drive has taken and may still lose. The
    /// default is 2G, or an eighth of the memory of this host. The least is 1M.
    #[arg(long, value_name = "SIZE", value_parser = buffer_size, help_heading = DESTINATION, hide_short_help = true)]
    tape_buffer: Option<u64>,
}

impl TapeToArgs {
    pub(super) fn options(&self) -> TapeOptions {
        let expires = self
            .expires
            .and_then(|time| Timestamp::now().checked_add(time).ok());
        TapeOptions {
            overwrite: self.overwrite.clone(),
            append: self.append,
            expires,
            part_bytes: self.part_size,
            buffer_bytes: self.tape_buffer,
        }
    }
}

fn part_size(text: &str) -> Result<u64, String> {
    at_least(size::parse(text)?, LEAST_PART_BYTES, "1M")
}

fn buffer_size(text: &str) -> Result<u64, String> {
    at_least(size::parse(text)?, LEAST_BUFFER_BYTES, "1M")
}

fn at_least(bytes: u64, least: u64, text: &str) -> Result<u64, String> {
    match bytes >= least {
        true => Ok(bytes),
        false => Err(format!("at least {text}")),
    }
}
