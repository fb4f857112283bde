//! `fullbore pin` and `fullbore unpin`: protect a backup from `forget`.

use crate::cli::{options::EXIT_CODES, output::told, select::SelectArgs};
use clap::Args;
use fullbore_format::{error::Result, text};
use fullbore_repository::{annotations::Annotations, open::locate};
use fullbore_storage::Storages;
use serde_json::json;
use std::{ffi::OsString, io::Write};

/// `fullbore pin` and `fullbore unpin`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct PinArgs {
    /// A repository, with @BACKUP for one of its backups
    ///
    /// BACKUP is an id, latest, or a day on which exactly one backup began.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: PinArgs, storages: &Storages, is_pinned: bool) -> Result<u8> {
    told(|out| args.print(storages, is_pinned, out).map(|()| 0))
}

impl PinArgs {
    /// Pins or unpins the backup.
    ///
    /// # Errors
    /// Those of finding the backup; errors of the system.
    fn print(&self, storages: &Storages, is_pinned: bool, out: &mut dyn Write) -> Result<()> {
        let filter = self.select.clone().filter(&self.from, true)?;
        let (objects, id) = locate(storages, &self.from, &filter)?;
        let notes = Annotations {
            pinned: is_pinned,
            ..Annotations::read(&*objects, &id)?
        };
        notes.write(&*objects, &id)?;
        if self.json {
            return text::json(
                out,
                &json!({ "type": "result", "id": id, "pinned": is_pinned }),
            );
        }
        let fate = if is_pinned {
            "pinned: it is never forgotten"
        } else {
            "no longer pinned"
        };
        text::line(out, &format!("{id}  {fate}"))
    }
}
