//! Prints the backups on tapes that the catalog of this host knows.

use fullbore_engine::tape::stored_bytes;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
    text::{self, shown, size, source_text},
};
use fullbore_repository::{select::BackupFilter, tape_catalog::TapeCatalog};
use fullbore_storage::Storages;
use serde_json::json;
use std::io::Write;

/// The location of all tapes: it names no drive.
pub(super) const ALL_TAPES: &str = "tape:";

/// Prints one line for each backup, the newest first.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is none; those of the catalog and of `out`.
pub(super) fn print(
    storages: &Storages,
    filter: &BackupFilter,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<u8> {
    let mut is_any = false;
    for root in TapeCatalog::of(storages).roots()? {
        if filter.selects(&root) {
            is_any = true;
            print_one(&root, is_json, out)?;
        }
    }
    if is_any {
        return Ok(0);
    }
    let message = "could not find a backup on tapes in the catalog of this host";
    Err(Error::new(ErrorKind::NotFound, message)
        .hint("`fullbore tape scan DRIVE` reads the catalog of a tape"))
}

fn print_one(root: &Root, is_json: bool, out: &mut dyn Write) -> Result<()> {
    let tapes: Vec<_> = root.tapes().into_values().collect();
    if is_json {
        let value = json!({
            "type": "taped_backup",
            "id": root.id,
            "time": root.time,
            "source": root.source,
            "source_text": source_text(&root.source),
            "files": root.totals.files,
            "bytes": root.totals.bytes,
            "stored_bytes": stored_bytes(root),
            "tapes": tapes,
        });
        return text::json(out, &value);
    }
    let line = format!(
        "{}  {:>9}  tapes {}  {}",
        root.id,
        size::bytes(stored_bytes(root)),
        tapes.join(", "),
        source_text(&root.source)
    );
    text::line(out, &shown(&line))
}
