//! Removes restored forks of unlogged relations whose init fork comes by the WAL of the backup.
//!
//! A server that finds such a main fork does not start. A backup stores the init forks that exist at
//! its end, so only a backup that lacks them has such main forks.

use fullbore_format::{error::Result, root::ClusterInfo};
use fullbore_platform as platform;
use fullbore_platform::dir;
use fullbore_postgres::{
    data_dir::local::LocalDir,
    lsn::Lsn,
    new_init_forks::{NewInitFork, new_init_forks},
    restore::plan::{ClusterPlan, PG_WAL},
    timeline::Timelines,
    wal_reader::WalSegments,
};
use fullbore_tree::write::{tree::TargetTree, writer::TargetWriter};
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Removes these forks from the restored cluster in `to`. All files and links are there by now.
///
/// If the WAL is not there or not understood, nothing is removed: then a second start of the server
/// succeeds.
///
/// # Errors
/// The system's, about a file that cannot be removed.
pub(crate) fn remove_forks(
    to: &Path,
    plan: &ClusterPlan,
    cluster: &ClusterInfo,
    tree: &Arc<TargetTree>,
) -> Result<()> {
    // A part of a cluster has no last file, and a stopped one is not recovered.
    if plan.last.is_none() || !cluster.online {
        return Ok(());
    }
    let mount = plan
        .mounts
        .iter()
        .find(|mount| mount.at == PG_WAL.as_bytes());
    let wal = mount.map_or_else(|| to.join(PG_WAL), |mount| mount.directory.clone());
    match forks_in(wal, to, cluster) {
        Ok(forks) => remove(&forks, cluster, tree),
        Err(error) => {
            platform::debug(|| format!("could not read in the WAL which forks come: {error}"));
            Ok(())
        }
    }
}

fn forks_in(
    directory: PathBuf,
    to: &Path,
    cluster: &ClusterInfo,
) -> io::Result<BTreeSet<NewInitFork>> {
    let place = |text: &str| text.parse::<Lsn>().map_err(|_| io::ErrorKind::InvalidData);
    let start = place(&cluster.start_lsn)?;
    let end = place(&cluster.stop_lsn)?;
    let bytes = cluster.wal_segment_bytes;
    if bytes == 0 || end <= start {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let timelines = Timelines::read(&LocalDir::new(to), cluster.timeline, cluster.timeline);
    let timelines = timelines.map_err(|error| io::Error::other(error.line()))?;
    let segments = WalSegments {
        files: &directory,
        names: &timelines.segments(start, end, bytes),
        bytes,
    };
    new_init_forks(&segments, start, end)
}

fn remove(
    forks: &BTreeSet<NewInitFork>,
    cluster: &ClusterInfo,
    tree: &Arc<TargetTree>,
) -> Result<()> {
    let mut writer = TargetWriter::new(tree);
    for fork in forks {
        let directory = fork.directory(&version_directory(fork, cluster, tree));
        let names = names_in(tree, directory.as_bytes());
        // The server itself removes the others if it finds the init fork.
        if names.iter().any(|name| fork.is_init(name)) {
            continue;
        }
        for name in names.iter().filter(|name| fork.is_other_fork(name)) {
            writer.remove(&[directory.as_bytes(), b"/", name].concat())?;
        }
    }
    Ok(())
}

/// Returns the name of the cluster's directory in the tablespace of a relation.
fn version_directory(fork: &NewInitFork, cluster: &ClusterInfo, tree: &TargetTree) -> String {
    let tablespace = format!("pg_tblspc/{}", fork.tablespace);
    let begin = format!("PG_{}_", cluster.major);
    let names = names_in(tree, tablespace.as_bytes());
    let names = names
        .into_iter()
        .filter_map(|name| String::from_utf8(name).ok());
    names
        .into_iter()
        .find(|name| name.starts_with(&begin))
        .unwrap_or_default()
}

/// Returns the names in a directory; none if it is not there.
fn names_in(tree: &TargetTree, path: &[u8]) -> Vec<Vec<u8>> {
    let names = tree
        .open_dir(path)
        .and_then(|dir| dir::read_dir(dir, &mut Vec::new()));
    names
        .unwrap_or_default()
        .into_iter()
        .map(|name| name.bytes)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_postgres::{
        lsn::segment_name,
        new_init_forks::CREATE,
        sample_wal::{TEST_SEGMENT, TEST_START, write_wal},
    };
    use fullbore_tree::write::{
        layout::{FinalFile, TargetLayout},
        tree::TargetOptions,
    };
    use std::fs;

    fn removed(to: &Path, cluster: &ClusterInfo, plan: &ClusterPlan) -> Vec<String> {
        let options = TargetOptions {
            overwrite: true,
            numeric_owner: false,
            usual_parents: false,
            whole_files: false,
        };
        let all = [
            "16384",
            "16384.1",
            "16384_fsm",
            "16385",
            "163840",
            "16386",
            "16386_init",
        ];
        for name in all {
            fs::write(to.join("base/5").join(name), "content").unwrap();
        }
        let tree = TargetTree::create(&TargetLayout::plain(to), options).unwrap();
        remove_forks(to, plan, cluster, &tree).unwrap();
        let is_gone = |name: &&str| !to.join("base/5").join(name).exists();
        all.into_iter().filter(is_gone).map(str::to_owned).collect()
    }

    #[test]
    fn forks_whose_init_fork_comes_by_wal_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path();
        fs::create_dir_all(target.join("base/5")).unwrap();
        fs::create_dir_all(target.join("pg_wal")).unwrap();
        let created = |number: u32, fork: u32| {
            let data = [1663, 5, number, fork].map(u32::to_le_bytes);
            (CREATE, [&[255, 16][..], data.as_flattened()].concat())
        };
        // One relation has its init fork already, one a main fork, and one no files.
        let records = [
            created(16384, 3),
            created(16385, 0),
            created(16386, 3),
            created(9, 3),
        ];
        let end = write_wal(&target.join("pg_wal"), &records);
        let name = segment_name(1, Lsn(TEST_SEGMENT), TEST_SEGMENT);
        fs::rename(target.join("pg_wal/0"), target.join("pg_wal").join(&name)).unwrap();
        let cluster = ClusterInfo {
            major: 15,
            online: true,
            timeline: 1,
            start_lsn: TEST_START.to_string(),
            stop_lsn: end.to_string(),
            wal_segment_bytes: TEST_SEGMENT,
            ..ClusterInfo::default()
        };
        let mut whole = ClusterPlan::default();
        whole.last = Some(FinalFile {
            path: b"global/pg_control".to_vec(),
            only_with: None,
        });
        let forks = ["16384", "16384.1", "16384_fsm"];
        assert_eq!(removed(target, &cluster, &whole), forks);
        assert!(removed(target, &cluster, &ClusterPlan::default()).is_empty());
        let stopped = ClusterInfo {
            online: false,
            ..cluster.clone()
        };
        assert!(removed(target, &stopped, &whole).is_empty());
        fs::remove_file(target.join("pg_wal").join(&name)).unwrap();
        assert!(removed(target, &cluster, &whole).is_empty());
    }
}
