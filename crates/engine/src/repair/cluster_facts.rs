//! Finds the facts of a PostgreSQL cluster in the files of its backup, after the root was lost.

use fullbore_format::{
    error::Result,
    root::{ClusterInfo, DatabaseInfo, EntryName, Root, Tablespace},
};
use fullbore_postgres::{
    control::Control,
    inventory::{MAX_UNLISTED, is_unlisted},
    restore::plan::{BACKUP_LABEL, PG_CONTROL},
};
use fullbore_repository::archive::small_file::small_file;
use fullbore_repository::archive::{Archive, Selection, preview::PreviewObjects};
use fullbore_storage::Objects;
use std::sync::Arc;

/// Adds the facts of a cluster to a rebuilt root, if it is a backup of one. Names of databases and
/// tablespaces are only in the catalog, and stay unknown.
///
/// # Errors
/// Errors of reading the files.
pub(crate) fn add(
    objects: &Arc<dyn Objects>,
    root: &mut Root,
    pages: &[(u64, Vec<u8>)],
) -> Result<()> {
    let archive = PreviewObjects::open(objects, root, pages)?;
    let control = file_of(&archive, PG_CONTROL).and_then(|bytes| Control::parse(&bytes));
    root.postgres = control.map(|control| cluster_of(&archive, &control));
    Ok(())
}

/// Returns the content of a small file; `None` if it is missing or unreadable.
fn file_of(archive: &Archive, path: &[u8]) -> Option<Vec<u8>> {
    let (_, bytes) = small_file(archive, path).ok().flatten()?;
    Some(bytes)
}

fn text_of(archive: &Archive, path: &[u8]) -> Option<String> {
    let bytes = file_of(archive, path)?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Returns the facts from the control file and the other files of a cluster.
fn cluster_of(archive: &Archive, control: &Control) -> ClusterInfo {
    let version = text_of(archive, b"PG_VERSION").unwrap_or_default();
    let label = text_of(archive, BACKUP_LABEL);
    let wal = wal_segments(archive);
    // A stopped cluster has no label: its control file says where its WAL ends.
    let stop_lsn = if label.is_some() {
        text_of(archive, b"backup_manifest")
            .as_deref()
            .and_then(stop)
            .unwrap_or_default()
    } else {
        control.wal_end().to_string()
    };
    ClusterInfo {
        major: version.parse().unwrap_or(0),
        version,
        system_identifier: control.system_identifier.to_string(),
        timeline: control.timeline,
        online: label.is_some(),
        standby: label
            .as_ref()
            .is_some_and(|label| label.contains("BACKUP FROM: standby")),
        checksums: control.checksum_version > 0,
        start_lsn: label.as_deref().and_then(start).unwrap_or_default(),
        stop_lsn,
        stopped: String::new(),
        wal: if wal.is_empty() { "none" } else { "included" }.to_owned(),
        wal_segments: wal.first().into_iter().chain(wal.last()).cloned().collect(),
        wal_segment_bytes: control.wal_segment_bytes.into(),
        archives: false,
        has_restore_command: false,
        via: String::new(),
        via_reason: String::new(),
        data_directory: EntryName::default(),
        configuration: Vec::new(),
        tablespaces: file_of(archive, b"tablespace_map")
            .map(|map| tablespaces(&map))
            .unwrap_or_default(),
        tablespaces_meanwhile: Vec::new(),
        unlisted: unlisted(archive),
        databases: databases(archive),
        witness: None,
    }
}

/// Returns `0/2000028` of `START WAL LOCATION: 0/2000028 (file …)`.
fn start(label: &str) -> Option<String> {
    let rest = label
        .lines()
        .find_map(|line| line.strip_prefix("START WAL LOCATION: "))?;
    rest.split(' ').next().map(str::to_owned)
}

/// Returns the end of the WAL range in a `backup_manifest`. The range of the latest timeline comes
/// first, and names have escaped quotes.
fn stop(manifest: &str) -> Option<String> {
    let rest = manifest.split_once("\"End-LSN\": \"")?.1;
    rest.split('"').next().map(str::to_owned)
}

/// Returns links, pipes and devices, which a `backup_manifest` cannot describe.
fn unlisted(archive: &Archive) -> Vec<EntryName> {
    let items = archive.records(&Selection::default(), false).flatten();
    let names = items.filter(|item| item.state.is_stored() && is_unlisted(&item.entry));
    names
        .map(|item| EntryName(item.entry.path.clone()))
        .take(MAX_UNLISTED)
        .collect()
}

fn wal_segments(archive: &Archive) -> Vec<String> {
    let wal_dir = Selection::new(&[b"pg_wal"]).unwrap_or_default();
    let names = archive
        .records(&wal_dir, false)
        .flatten()
        .filter_map(|item| {
            let name = item.entry.path.strip_prefix(b"pg_wal/")?.to_vec();
            String::from_utf8(name).ok()
        });
    let mut names: Vec<_> = names
        .filter(|name| name.len() == 24 && name.bytes().all(|c| c.is_ascii_hexdigit()))
        .collect();
    names.sort();
    names
}

/// Returns numbers and locations from a `tablespace_map`: a number, a space, a path with escaped
/// line feeds.
fn tablespaces(map: &[u8]) -> Vec<Tablespace> {
    let lines = map.split(|c| *c == b'\n').filter_map(|line| {
        let space = line.iter().position(|c| *c == b' ')?;
        let oid = std::str::from_utf8(&line[..space]).ok()?.parse().ok()?;
        Some(Tablespace {
            oid,
            name: EntryName::default(),
            location: EntryName(line[space + 1..].to_vec()),
        })
    });
    lines.collect()
}

fn databases(archive: &Archive) -> Vec<DatabaseInfo> {
    let databases_dir = Selection::new(&[b"base"]).unwrap_or_default();
    let oids = archive
        .records(&databases_dir, false)
        .flatten()
        .filter_map(|item| {
            let name = item.entry.path.strip_prefix(b"base/")?.to_vec();
            String::from_utf8(name).ok()?.parse().ok()
        });
    oids.map(|oid| DatabaseInfo {
        oid,
        ..DatabaseInfo::default()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_postgres::manifest::{Manifest, WalRange};
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_backup_of_several_timelines_ends_on_the_latest() {
        let mut manifest = Manifest::new(17, 1).unwrap();
        manifest
            .add(b"\"End-LSN\": \"0/1\"", 3, 0, Some(0))
            .unwrap();
        let range = |timeline, start_lsn, end_lsn| WalRange {
            timeline,
            start_lsn,
            end_lsn,
        };
        let finished = manifest
            .finish(&[range(2, 0x5000, 0x7000), range(1, 0x4000, 0x5000)])
            .unwrap();
        let mut text = vec![0; finished.bytes as usize];
        finished.file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(stop(&String::from_utf8(text).unwrap()).unwrap(), "0/7000");
    }
}
