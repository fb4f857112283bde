//! Prints the backups on tapes that the catalog of this host knows.

use fullbore_engine::tape::stored_bytes;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
    text::{self, shown, size},
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
    let paths: Vec<_> = { root.source.paths.iter() }
        .map(|path| String::from_utf8_lossy(&path.0).into_owned())
        .collect();
    if is_json {
        let value = json!({
            "id": root.id,
            "time": root.time,
            "host": root.source.host,
            "paths": paths,
            "files": root.totals.files,
            "bytes": root.totals.bytes,
            "stored_bytes": stored_bytes(root),
            "tapes": tapes,
        });
        return text::json(out, &value);
    }
    let source = format!("{}:{}", root.source.host, paths.join(" "));
    let line = format!(
        "{}  {:>9}  tapes {}  {}",
        root.id,
        size::bytes(stored_bytes(root)),
        tapes.join(", "),
        source
    );
    text::line(out, &shown(&line))
}
