//! Pages whose checksums are wrong: the backup is whole but for them, and says which they are.

use super::{
    args,
    cluster::{Cluster, debian, some_versions},
    runs::{fullbore, write},
};
use fullbore_format::{
    digest::Piece,
    entry::{Entry, EntryKind},
    page::EntryState,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned},
    stage::Stage,
};
use fullbore_platform::dir;
use fullbore_postgres::{
    data_dir::local::LocalDir,
    page_stage::{PageCheck, PageChecks},
    relation::Sizes,
};
use fullbore_tree::read::{Own, SourceTree, Top, TopRole, TreeRules};
use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

/// Change one byte of a page's content.
fn flip(file: &Path, page: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let (mut byte, offset) = ([0], page * 8192 + 8000);
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn wrong_pages_are_named_with_their_file_and_everything_else_is_right() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let (large, small) = (cluster.file_of("large"), cluster.file_of("small"));
        cluster.stop("fast");
        [3, 200, 1000]
            .iter()
            .for_each(|page| flip(&cluster.data().join(&large), *page));
        flip(&cluster.data().join(&small), 1);
        cluster.start();
        let ran = cluster.backup("repository", &[]).ends_with(3);
        assert!(
            ran.err
                .contains(&format!("captured, but not as it was: \"{large}\": ")),
            "{}",
            ran.err
        );
        let state_of = |path: &str| {
            ran.err
                .lines()
                .find(|line| line.contains(path))
                .unwrap()
                .to_owned()
        };
        assert!(
            ["3", "200", "1000"]
                .iter()
                .all(|page| state_of(&large).contains(page)),
            "{}",
            ran.err
        );
        let repository = cluster.path("repository");
        let root = fullbore(args!["show", repository, "--json"])
            .json()
            .remove(0)["root"]
            .take();
        assert_eq!(root["totals"]["bad_pages"], 2, "{}", root["totals"]);
        let named: Vec<_> = root["not_captured"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| &file["path"])
            .collect();
        assert_eq!(
            named,
            [
                &*small.clone().min(large.clone()),
                &*small.clone().max(large.clone())
            ]
        );
        let entries = fullbore(args!["list", format!("{}@latest", repository.display())]).out;
        let entry = entries
            .lines()
            .find(|line| line.contains(&format!("{large} ")))
            .unwrap();
        assert!(entry.ends_with("(wrong page checksums: 3)"), "{entry}");
        let listed = fullbore(args!["list", repository]).out;
        assert!(listed.contains("2 with wrong page checksums"), "{listed}");
        assert_eq!(
            fullbore(args!["list", repository, "--json"]).json()[0]["complete"],
            false
        );
        let restored = Cluster::empty(version);
        let ran = fullbore(args!["restore", repository, "--to", restored.data()]).ends_with(3);
        assert!(
            ran.err
                .contains("note: 2 files had wrong page checksums already, the first is "),
            "{}",
            ran.err
        );
        assert!(ran.err.contains("next: pg_ctl"), "{}", ran.err);
        // What is wrong is stored as it is.
        super::runs::shell(
            "diff -r -x 'pg_internal.init*' -x 'pgsql_tmp*' \"$1/base\" \"$2/base\"",
            args![cluster.data(), restored.data()],
        )
        .ends_with(0);
        restored.start();
        assert_eq!(
            restored.psql("SELECT count(*) FROM pg_class WHERE relname IN ('large', 'small')"),
            "2"
        );
    }
}

#[test]
fn a_cluster_without_checksums_is_not_looked_at() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let off = cluster
        .command("pg_checksums")
        .args(["--disable", "--no-sync", "-D"])
        .arg(cluster.data())
        .output();
    assert!(off.unwrap().status.success());
    cluster.start();
    let small = cluster.file_of("small");
    cluster.stop("fast");
    flip(&cluster.data().join(&small), 1);
    cluster.start();
    cluster.backup("repository", &["--quiet"]).ends_with(0);
}

/// A directory with one relation file, and the stage that looks at its pages.
struct Looked {
    dir: tempfile::TempDir,
    check: Arc<PageCheck>,
}

impl Looked {
    fn new(file: &str, on_disk: &[u8], start_lsn: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path().join(file), on_disk);
        let top = Top {
            at: vec![],
            dir: dir::open_root(dir.path()).unwrap(),
            name: None,
            role: TopRole::Named,
        };
        let rules = TreeRules {
            exclude: Default::default(),
            files: Default::default(),
            looks_twice: false,
            on_excluded: None,
            caches: Default::default(),
            walkers: 1,
            own: Own::default(),
            overlay: None,
            torn: |_, _| None,
        };
        let tree = SourceTree::new(
            vec![top],
            Default::default(),
            Default::default(),
            Arc::new(rules),
        );
        let check = Arc::new(PageCheck {
            data: Some(Arc::new(LocalDir::of_trees(
                dir.path(),
                vec![Arc::new(tree)],
            ))),
            sizes: Sizes::default(),
            start_lsn,
        });
        Self { dir, check }
    }

    /// Pages of `content`, read from `offset` of the file, that are wrong.
    fn bad(&self, file: &str, offset: u64, content: &[u8]) -> Vec<u32> {
        let kind = EntryKind::File {
            size: offset + content.len() as u64,
            map: None,
        };
        let large = LargeFile::new(
            Scanned::new(
                Entry {
                    path: file.into(),
                    kind,
                    ..Entry::default()
                },
                EntryState::Whole,
            ),
            1 << 30,
            1,
        );
        let frame_content = FrameContent::Piece {
            file: large.clone(),
            offset,
            last: false,
        };
        let len = content.len() as u32;
        let part = FrameEntry {
            what: frame_content,
            inner: 0,
            len,
            known: None,
            runs: None,
            piece: Piece::None,
            crcs: vec![],
            chunks: vec![],
            replaced: false,
            is_first: true,
        };
        PageChecks(self.check.clone())
            .apply(Frame::new(Buf::from(content.to_vec()), vec![part], true))
            .unwrap();
        let bad = large.bad_pages.lock().unwrap().clone();
        assert!(matches!(
            EntryState::bad_pages(bad.clone()),
            EntryState::BadPages(_)
        ));
        bad
    }
}

/// Pages that the server has written, of the relation `large`.
fn pages() -> Option<Vec<u8>> {
    let cluster = Cluster::new(debian()?, &[]);
    let file = cluster.data().join(cluster.file_of("large"));
    cluster.stop("fast");
    Some(fs::read(file).unwrap()[..16 * 8192].to_vec())
}

#[test]
fn a_page_that_was_torn_is_read_again_and_one_that_is_newer_than_the_start_is_not_judged() {
    let Some(good) = pages() else { return };
    let mut torn = good.clone();
    torn[3 * 8192 + 5000] ^= 1;
    let name = "base/5/16384";
    assert_eq!(
        Looked::new(name, &good, u64::MAX).bad(name, 0, &good),
        [0; 0]
    );
    assert_eq!(
        Looked::new(name, &good, u64::MAX).bad(name, 0, &torn),
        [0; 0],
        "it is good by now"
    );
    assert_eq!(Looked::new(name, &torn, u64::MAX).bad(name, 0, &torn), [3]);
    assert_eq!(
        Looked::new(name, &torn, 1).bad(name, 0, &torn),
        [0; 0],
        "WAL writes it anew"
    );
    assert_eq!(
        Looked::new(name, &torn[..8192], u64::MAX).bad(name, 0, &torn),
        [0; 0],
        "the file was cut"
    );
    let gone = Looked::new(name, &torn, u64::MAX);
    fs::remove_file(gone.dir.path().join(name)).unwrap();
    assert_eq!(gone.bad(name, 0, &torn), [3], "nobody knows better");
    assert_eq!(
        Looked::new("base/5/PG_VERSION", &torn, u64::MAX).bad("base/5/PG_VERSION", 0, &torn),
        [0; 0]
    );
}

#[test]
fn numbers_of_pages_go_on_across_segments_of_a_relation() {
    let Some(good) = pages() else { return };
    let name = "base/5/16384.1";
    let all: Vec<u32> = (131_072..131_088).collect();
    assert_eq!(
        Looked::new(name, &good, u64::MAX).bad(name, 0, &good),
        all,
        "these are the pages of segment 0"
    );
    // At 64 KiB of a file, they are 8 pages further than they say.
    let name = "base/5/16384";
    let later = [vec![0; 8 * 8192], good.clone()].concat();
    assert_eq!(
        Looked::new(name, &later, u64::MAX).bad(name, 8 * 8192, &good),
        (8..24).collect::<Vec<_>>()
    );
}
