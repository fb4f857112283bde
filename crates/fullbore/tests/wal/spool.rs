//! Files that wait on the server's host while the repository is away.

use super::{
    args,
    cluster::{Cluster, versions},
    made::object_of_host,
    recovery::archiving,
    runs::{FULLBORE, fullbore, is_root, or_skip, set_mode, shell},
    servers::{as_postgres, own, wait_until},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A cluster that archives over a connection that can be cut off, into a spool of two segments then.
struct Cut {
    cluster: Cluster,
    repository: PathBuf,
    away: PathBuf,
    spool: PathBuf,
}

impl Cut {
    fn new() -> Option<Self> {
        let (cluster, repository) = archiving(versions().last()?, "repository");
        let cut = Self {
            away: cluster.path("away"),
            spool: cluster.path("spool"),
            cluster,
            repository,
        };
        let ssh = cut.cluster.path("ssh");
        let script = format!(
            "#!/bin/sh\n[ ! -e {} ] || exit 255\nfor line; do :; done\nexec sh -c \"$line\"\n",
            cut.away.display()
        );
        fs::write(&ssh, script).unwrap();
        set_mode(&ssh, 0o755);
        let command = format!(
            "FULLBORE_STATE_DIR={} FULLBORE_SSH={} {FULLBORE} wal push %p --to ssh://there{} --far-program {FULLBORE} \
             --patience 0 --spool {} --spool-size 33M",
            cut.cluster.path("state").display(),
            ssh.display(),
            cut.repository.display(),
            cut.spool.display()
        );
        cut.cluster
            .configure(&[&format!("archive_command = '{command}'")]);
        cut.cluster.psql("SELECT pg_reload_conf()");
        Some(cut)
    }

    fn set_away(&self, is_away: bool) {
        match is_away {
            true => fs::write(&self.away, "").unwrap(),
            false => fs::remove_file(&self.away).unwrap(),
        }
    }

    fn switch(&self) -> String {
        self.cluster
            .psql("SELECT pg_logical_emit_message(false, 'test', 'switch')");
        self.cluster.psql("SELECT pg_walfile_name(pg_switch_wal())")
    }

    fn is_archived(&self, segment: &str) -> bool {
        let last = "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver";
        self.cluster.psql(last).as_str() >= segment
    }

    fn has_stored(&self, segment: &str) -> bool {
        let listed = fullbore(args!["wal", "list", self.repository, "--json"]).ends_with(0);
        let last = listed.json()[0]["timelines"][0]["last_segment"]
            .as_str()
            .map(str::to_owned);
        last.is_some_and(|last| last.as_str() >= segment)
    }

    /// The files in the spool, but for the reasons of those that were refused.
    fn spooled(&self, below: &str) -> Vec<String> {
        let system = fs::read_dir(&self.spool)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let is_segment = |name: &String| name.len() == 24;
        names(&system.join(below))
            .into_iter()
            .filter(is_segment)
            .collect()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let listed = fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<String> = listed
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_spool_takes_segments_while_the_repository_is_away_and_gives_them_back_in_order() {
    let Some(cut) = Cut::new() else { return };
    let first = cut.switch();
    wait_until("the segment is archived", || cut.is_archived(&first));
    assert!(cut.has_stored(&first) && !cut.spool.exists());
    cut.set_away(true);
    let waiting: Vec<String> = (0..2).map(|_| cut.switch()).collect();
    wait_until("both are in the spool", || cut.is_archived(&waiting[1]));
    assert_eq!(cut.spooled(""), waiting);
    assert!(!cut.has_stored(&waiting[0]));
    wait_until("the server's log says so", || {
        cut.cluster
            .log()
            .contains("on this host only: 2 files, 33.6 MB of WAL")
    });
    // There is no room for a third: the server keeps it.
    let third = cut.switch();
    wait_until("the third is refused", || {
        cut.cluster
            .psql("SELECT coalesce(last_failed_wal, '') FROM pg_stat_archiver")
            == third
    });
    assert!(!cut.is_archived(&third));
    assert!(
        cut.cluster.log().contains("into the spool"),
        "{}",
        cut.cluster.log()
    );
    assert_eq!(cut.spooled(""), waiting);
    cut.set_away(false);
    wait_until("all are in the repository", || cut.has_stored(&waiting[1]));
    wait_until("the spool is empty", || cut.spooled("").is_empty());
    // A server that was refused asks again with its next segment, or after a minute.
    cut.switch();
    wait_until("the server has room again", || cut.is_archived(&third));
    wait_until("the third is stored", || cut.has_stored(&third));
    fullbore(args!["wal", "check", cut.repository]).ends_with(0);
}

#[test]
fn a_spooled_segment_of_which_there_is_other_content_is_kept_aside_and_named() {
    let Some(cut) = Cut::new() else { return };
    cut.set_away(true);
    let segment = cut.switch();
    wait_until("it is in the spool", || cut.is_archived(&segment));
    // Meanwhile another server stores other records under its name.
    let mut content = fs::read(cut.cluster.data().join("pg_wal").join(&segment)).unwrap();
    content[24..16 << 10]
        .iter_mut()
        .skip(40)
        .for_each(|byte| *byte ^= 1);
    let system = cut
        .cluster
        .psql("SELECT system_identifier FROM pg_control_system()");
    let (key, object) = object_of_host("other", &system, &segment, &content);
    let path = cut.repository.join(key);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, object).unwrap();
    let line = "chown -R --reference=\"$1\" \"$1\"";
    shell(line, args![cut.repository]).ends_with(0);
    cut.set_away(false);
    wait_until("it is put aside", || {
        cut.spooled("refused") == [segment.clone()]
    });
    assert!(cut.spooled("").is_empty());
    // The next is stored. With the one after that, the server's log names what was refused.
    let next = cut.switch();
    wait_until("the next is stored", || cut.has_stored(&next));
    cut.set_away(true);
    cut.switch();
    wait_until("the log names it", || {
        let log = cut.cluster.log();
        log.contains("the repository refused 1 file")
            && log.contains("other content of this name is there")
    });
}

#[test]
fn files_of_another_user_in_a_spool_are_not_archived() {
    if !or_skip(is_root(), "only root can give a file away") {
        return;
    }
    let Some(cut) = Cut::new() else { return };
    let first = cut.switch();
    wait_until("the segment is archived", || cut.is_archived(&first));
    // A complete segment of this cluster, but for its place: the one of its name.
    let planted = format!("{}FE", &first[..22]);
    let mut content = fs::read(cut.cluster.data().join("pg_wal").join(&first)).unwrap();
    content[8..16].copy_from_slice(&(0xfe_u64 << 24).to_ne_bytes());
    let system = cut
        .cluster
        .psql("SELECT system_identifier FROM pg_control_system()");
    let dir = cut.spool.join(system);
    fs::create_dir_all(&dir).unwrap();
    own(&cut.spool);
    fs::write(dir.join(&planted), content).unwrap();
    shell("chown -R 65534:65534 \"$1\"", args![dir]).ends_with(0);
    // The process that pushes ahead leaves it alone.
    let mut serve = as_postgres("timeout");
    serve
        .args(["60", FULLBORE, "wal", "serve", "--idle", "1s"])
        .arg(cut.cluster.data());
    serve.arg("--to").arg(&cut.repository);
    serve.arg("--spool").arg(&cut.spool);
    serve.env("FULLBORE_STATE_DIR", cut.cluster.path("state"));
    assert!(serve.status().unwrap().success());
    assert_eq!(cut.spooled(""), [planted.as_str()]);
    assert!(!cut.has_stored(&planted));
    // No file is added to it: the server keeps its WAL.
    cut.set_away(true);
    let second = cut.switch();
    wait_until("the second is refused", || {
        let failed = "SELECT coalesce(last_failed_wal, '') FROM pg_stat_archiver";
        cut.cluster.psql(failed) == second
    });
    let log = cut.cluster.log();
    assert!(log.contains("belongs to user 65534"), "{log}");
    assert!(!cut.is_archived(&second));
}
