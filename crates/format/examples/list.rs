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
    let repository = backup.parent().ok_or("it is not in a repository")?;
    let mut root = Root::open_as_stored(&fs::read(backup.join(ROOT))?, "the root")?;
    // The lists of a backup without changes stand in the manifest of an earlier one.
    if let Some(at) = root.lists_at.clone().filter(|_| root.is_short()) {
        let manifest = fs::read(repository.join(&root.lists_of).join(MANIFEST))?;
        let stored = range(&manifest, at.offset, at.bytes)?;
        root = root.with_lists(at.lists(stored)?, "the root")?;
    }
    for page in &root.pages {
        // A page that did not change since an earlier backup stands in the manifest of that one.
        let owner = match page.backup.as_str() {
            "" => backup.clone(),
            earlier => repository.join(earlier),
        };
        let manifest = fs::read(owner.join(MANIFEST))?;
        let start = page.manifest_offset.ok_or("the page is in a segment")?;
        let stored = range(&manifest, start, page.bytes)?;
        for record in ManifestPage::decode(stored)?.records {
            println!("{:o} {}", record.entry.mode, quoted(&record.entry.path));
        }
    }
    Ok(())
}

fn range(manifest: &[u8], start: u64, bytes: u64) -> Result<&[u8], Error> {
    let end = start.checked_add(bytes);
    let range = end.and_then(|end| manifest.get(start as usize..end as usize));
    range.ok_or_else(|| Error::corrupt("the manifest is too short"))
}
