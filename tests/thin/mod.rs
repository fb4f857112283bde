//! Makes a full backup refer to another one wherever that has the same content, as an incremental one does.

#![allow(dead_code, missing_docs, unreachable_pub)]

use fullbore::{
    format::{
        digest::hex,
        layout::{BACKUPS, MANIFEST, ROOT},
        page::{Extent, Item, Page, Record, SegmentId},
        root::{FORMAT, Live, PageAt, Root, seal},
    },
    source::archive::Archive,
};
use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::Path,
};

/// Let backup `id` refer to `base`: whole pages where they are the same, else whole files, else the frames of large ones.
pub fn thin(repository: &Path, base: &str, id: &str) {
    let (old, new) = (Archive::open_backup(repository, base).unwrap(), Archive::open_backup(repository, id).unwrap());
    let mut manifest = Vec::new();
    let mut root =
        Root { format: FORMAT, bases: vec![base.into()], pages: vec![], liveness: vec![], ..new.root.clone() };
    let mut used = Used::new();
    for (index, at) in new.root.pages.iter().enumerate() {
        let mut page = Page::clone(&new.page(index).unwrap());
        let records = (0..page.records.len()).map(|at| referring(&old, base, &mut page, at)).collect();
        page.records = records;
        note(&page, &mut used);
        let same = (0..old.root.pages.len()).find(|at| same(&old.page(*at).unwrap(), base, &page));
        root.pages.push(match same {
            Some(at) => {
                let at = &old.root.pages[at];
                PageAt { backup: if at.backup.is_empty() { base.into() } else { at.backup.clone() }, ..at.clone() }
            }
            None => stored(&page, at, &mut manifest),
        });
    }
    let segments = |segment: &SegmentId| match &segment.backup[..] {
        "" => new.root.segments.clone(),
        other => Archive::open_backup(repository, other).unwrap().root.segments,
    };
    for (id, frames) in used {
        let segment = segments(&id).into_iter().find(|s| (s.stream, s.number) == (id.stream, id.number)).unwrap();
        let bytes = frames.iter().map(|(_, len)| u64::from(*len)).sum();
        let SegmentId { backup, stream, number } = id;
        root.liveness.push(Live {
            backup,
            stream,
            number,
            frames: frames.len() as u64,
            bytes,
            of_bytes: segment.bytes,
        });
    }
    let dir = repository.join(BACKUPS).join(id);
    fs::write(dir.join(MANIFEST), manifest).unwrap();
    fs::write(dir.join(ROOT), seal(&root).unwrap()).unwrap();
}

/// For each segment the frames in use: offset, stored bytes.
type Used = HashMap<SegmentId, BTreeSet<(u64, u32)>>;

fn note(page: &Page, used: &mut Used) {
    for extent in page.records.iter().flat_map(|record| &record.extents) {
        let segment = page.segments[extent.frame.segment as usize].clone();
        used.entry(segment).or_default().insert((extent.frame.offset, extent.frame.stored_len));
    }
}

/// A record whose content is where the base has it, as far as it is the same.
fn referring(old: &Archive, base: &str, page: &mut Page, at: usize) -> Record {
    let mut record = page.records[at].clone();
    let [before] = &old.find(&record.entry.path).unwrap()[..] else { return record };
    if record.more || record.from > 0 || before.more || before.from > 0 || !record.entry.is_file() {
        return record;
    }
    let whole = before.digest.is_some() && before.digest == record.digest;
    for (number, extent) in record.extents.iter_mut().enumerate() {
        let matches = before.extents.get(number).filter(|before| before.len == extent.len);
        let block = || record.blocks.get(number).is_some_and(|block| before.blocks.get(number) == Some(block));
        if let Some(matches) = matches.filter(|_| whole || (extent.len == 64 << 10 && block())) {
            *extent = moved(page, before, base, *matches);
        }
    }
    record
}

fn moved(page: &mut Page, item: &Item, base: &str, mut extent: Extent) -> Extent {
    let mut segment = item.segment(&extent.frame).clone();
    if segment.backup.is_empty() {
        segment.backup = base.to_owned();
    }
    let known = page.segments.iter().position(|known| *known == segment);
    extent.frame.segment = known.unwrap_or_else(|| {
        page.segments.push(segment);
        page.segments.len() - 1
    }) as u32;
    extent
}

/// Are the records those of a page of the base?
fn same(of_base: &Page, base: &str, page: &Page) -> bool {
    let named = |page: &Page, record: &Record| {
        let of = |extent: &Extent| {
            let segment = page.segments[extent.frame.segment as usize].clone();
            let backup = if segment.backup.is_empty() { base.to_owned() } else { segment.backup };
            (backup, segment.stream, segment.number, extent.frame.offset, extent.inner, extent.len)
        };
        let mut bare = record.clone();
        bare.extents.clear();
        (bare, record.extents.iter().map(of).collect::<Vec<_>>())
    };
    page.records.len() == of_base.records.len()
        && !page.segments.iter().any(|s| s.backup.is_empty() && page.records.iter().any(|r| is_own(page, r)))
        && page.records.iter().zip(&of_base.records).all(|(a, b)| named(page, a) == named(of_base, b))
}

fn is_own(page: &Page, record: &Record) -> bool {
    record.extents.iter().any(|extent| page.segments[extent.frame.segment as usize].backup.is_empty())
}

fn stored(page: &Page, at: &PageAt, manifest: &mut Vec<u8>) -> PageAt {
    let bytes = page.encode().unwrap();
    let offset = manifest.len() as u64;
    manifest.extend(&bytes);
    let digest = hex(blake3::hash(&bytes).as_bytes());
    PageAt { manifest_offset: Some(offset), bytes: bytes.len() as u64, digest, ..at.clone() }
}
