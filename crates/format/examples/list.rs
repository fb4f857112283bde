//! Lists a backup with nothing but this crate: `cargo run -p fullbore-format --example list REPO/backups/ID`.

use fullbore_format::{
    error::{Error, quoted},
    layout::{MANIFEST, ROOT},
    page::ManifestPage,
    root::Root,
};
use std::{env::args_os, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backup = PathBuf::from(args_os().nth(1).ok_or("name the directory of a backup")?);
    let root = Root::open(&fs::read(backup.join(ROOT))?, "the root")?;
    let repository = backup.parent().ok_or("it is not in a repository")?;
    for page in &root.pages {
        // A page that did not change since an earlier backup stands in the manifest of that one.
        let owner = match page.backup.as_str() {
            "" => backup.clone(),
            earlier => repository.join(earlier),
        };
        let manifest = fs::read(owner.join(MANIFEST))?;
        let start = page.manifest_offset.ok_or("the page is in a segment")? as usize;
        let stored = start
            .checked_add(page.bytes as usize)
            .and_then(|end| manifest.get(start..end));
        let stored = stored.ok_or_else(|| Error::corrupt("the manifest is too short"))?;
        for record in ManifestPage::decode(stored)?.records {
            println!("{:o} {}", record.entry.mode, quoted(&record.entry.path));
        }
    }
    Ok(())
}
