//! Every backup after the first stores what changed, and every one of them is complete.

mod bounds;
mod inodes;
mod parts;

use proptest::{collection::vec, prelude::*};
use rustix::fs::{FallocateFlags, fallocate};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};
use testkit::runs::{
    self, Shape, assert_same, fullbore, noise, sample, set_mode, set_mtime, shape, temp, text,
    write,
};

/// Files touched less than this before a backup begins are read by the next one.
const SETTLED: Duration = Duration::from_millis(3100);

/// Back up, and give the id and the result.
fn backup(tree: &Path, repo: &Path, options: &[&str]) -> serde_json::Value {
    let command = args!["backup", tree, "--to", repo, "--json"]
        .into_iter()
        .chain(runs::args(options));
    let ran = fullbore(command).ends_with(0);
    ran.json().pop().unwrap()
}

fn root(repo: &Path, id: &str) -> serde_json::Value {
    serde_json::from_slice(&fs::read(repo.join("backups").join(id).join("root.json")).unwrap())
        .unwrap()
}

fn ids(repo: &Path) -> Vec<String> {
    let entries = fs::read_dir(repo.join("backups")).unwrap();
    let mut ids: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    ids.sort();
    ids
}

fn restored(repo: &Path, id: &str) -> Shape {
    let dir = temp();
    let back = dir.path().join("back");
    let backup = format!("{}@{id}", repo.display());
    fullbore(args!["restore", backup, "--to", back, "--quiet"]).ends_with(0);
    shape(&back)
}

fn verified(repo: &Path, id: &str) {
    fullbore(args![
        "verify",
        format!("{}@{id}", repo.display()),
        "--data"
    ])
    .ends_with(0);
}

#[test]
fn what_did_not_change_is_not_stored_again() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    sample(&tree);
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    let result = backup(&tree, &repo, &[]);
    let ids = ids(&repo);
    let root = root(&repo, &ids[1]);
    assert_eq!(root["bases"][0], ids[0]);
    assert_eq!(
        (
            root["segments"].as_array().unwrap().len(),
            &root["pages"][0]["backup"]
        ),
        (0, &root["bases"][0])
    );
    assert_eq!(
        (&root["totals"]["kept"], &root["totals"]["stored_bytes"]),
        (&root["totals"]["files"], &0.into())
    );
    assert_eq!(result["stored_bytes"], 0);
    for id in &ids {
        assert_same(&shape(&tree), &restored(&repo, id), id);
        verified(&repo, id);
    }
}

#[test]
fn of_a_large_file_only_changed_blocks_are_stored() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("large"), noise(1, 20 << 20));
    backup(&tree, &repo, &["--block-size", "64K"]);
    let file = File::options()
        .write(true)
        .open(tree.join("large"))
        .unwrap();
    file.write_all_at(b"changed", 5 << 20).unwrap();
    file.write_all_at(b"changed", (9 << 20) - 3).unwrap();
    file.write_all_at(&noise(2, 100), 20 << 20).unwrap();
    let result = backup(&tree, &repo, &["--block-size", "64K"]);
    let stored = result["stored_bytes"].as_u64().unwrap();
    assert!(
        (3 * 65_536..3 * 65_536 + 20_000).contains(&stored),
        "{stored}"
    );
    for id in ids(&repo) {
        verified(&repo, &id);
    }
    assert_same(&shape(&tree), &restored(&repo, "latest"), "the second");
}

#[test]
fn of_a_file_whose_content_shifts_little_is_stored() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("dump"), noise(1, 12 << 20));
    backup(&tree, &repo, &["--chunking", "content"]);
    let mut dump = noise(1, 12 << 20);
    dump.splice(777..777, *b"a line more");
    dump.splice((5 << 20)..(5 << 20) + 1000, *b"another instead of these");
    write(tree.join("dump"), &dump);
    let result = backup(&tree, &repo, &["--chunking", "content"]);
    let stored = result["stored_bytes"].as_u64().unwrap();
    assert!(stored < (12 << 20) / 6, "{stored}");
    // The same chunks in another order are another file.
    let halves = [&dump[6 << 20..], &dump[..6 << 20]].concat();
    write(tree.join("dump"), halves);
    backup(&tree, &repo, &["--chunking", "content"]);
    verified(&repo, &ids(&repo)[1]);
    verified(&repo, "latest");
    assert_same(&shape(&tree), &restored(&repo, "latest"), "swapped");
    backup(&tree, &repo, &[]);
    assert_same(
        &shape(&tree),
        &restored(&repo, "latest"),
        "compared by blocks",
    );
}

#[test]
fn of_a_sparse_image_what_stands_behind_a_hole_that_came_or_went_is_kept() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    let image = tree.join("image");
    write(&image, b"");
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(&noise(1, 6 << 20), 1 << 20).unwrap();
    file.write_all_at(&noise(2, 6 << 20), 1 << 39).unwrap();
    backup(&tree, &repo, &[]);
    // A hole in the middle of what was there, and data where a hole was, before and between.
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        2 << 20,
        8192,
    )
    .unwrap();
    file.write_all_at(&noise(3, 4096), 0).unwrap();
    file.write_all_at(&noise(4, 12_288), 1 << 30).unwrap();
    let result = backup(&tree, &repo, &[]);
    let stored = result["stored_bytes"].as_u64().unwrap();
    assert!(stored < 700_000, "{stored}");
    verified(&repo, "latest");
    for options in [
        &["--chunking", "content"][..],
        &[],
        &["--block-size", "64K"],
    ] {
        file.write_all_at(&noise(5, 4096), 3 << 20).unwrap();
        backup(&tree, &repo, options);
        let back = temp();
        fullbore(args![
            "restore",
            repo,
            "--to",
            back.path().join("back"),
            "--quiet"
        ])
        .ends_with(0);
        let back = File::open(back.path().join("back/image")).unwrap();
        assert_eq!(back.metadata().unwrap().len(), 1 << 40);
        for (offset, len) in [
            (0, 8 << 20),
            (1 << 30, 1 << 20),
            ((1 << 39) - 4096, 7 << 20),
        ] {
            assert!(
                at_place(&back, offset, len) == at_place(&File::open(&image).unwrap(), offset, len),
                "{offset}"
            );
        }
    }
}

#[test]
fn of_a_sparse_image_in_worn_segments_only_what_is_in_them_is_stored_again() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    let image = tree.join("image");
    write(&image, noise(1, 8 << 20));
    let file = File::options().read(true).write(true).open(&image).unwrap();
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        63 * 16_384,
        8192,
    )
    .unwrap();
    backup(&tree, &repo, &[]);
    for place in (0..512).filter(|place| place % 3 != 0) {
        file.write_all_at(&[place as u8; 16_384], place * 16_384)
            .unwrap();
    }
    backup(&tree, &repo, &[]);
    set_mtime(&image, 1_700_000_000, 0);
    let again = backup(&tree, &repo, &[]);
    let (kept, stored) = (
        again["kept_bytes"].as_u64().unwrap(),
        again["stored_bytes"].as_u64().unwrap(),
    );
    assert!(
        kept > 5 << 20 && (2 << 20..3 << 20).contains(&stored),
        "{again}"
    );
    assert_same(&shape(&tree), &restored(&repo, "latest"), "worn");
    ids(&repo).iter().for_each(|id| verified(&repo, id));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn whatever_holes_come_and_go_an_image_comes_back(
        days in vec(vec((any::<bool>(), 0u64..1536, 1u64..200), 1..6), 2..6),
    ) {
        let dir = temp();
        let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
        let image = tree.join("image");
        write(&image, noise(1, 5 << 20));
        let file = File::options().read(true).write(true).open(&image).unwrap();
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1 << 20, 12_288).unwrap();
        backup(&tree, &repo, &[]);
        for (day, changes) in days.iter().enumerate() {
            for (hole, block, blocks) in changes {
                let (offset, len) = (block * 4096, blocks * 4096);
                match hole {
                    true => fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).unwrap(),
                    false => file.write_all_at(&noise(day as u64 * offset, len as usize), offset).unwrap(),
                }
            }
            backup(&tree, &repo, &[]);
            let back = temp();
            fullbore(args!["restore", repo, "--to", back.path().join("back"), "--quiet"]).ends_with(0);
            prop_assert!(fs::read(back.path().join("back/image")).unwrap() == fs::read(&image).unwrap(), "{}", day);
        }
        ids(&repo).iter().for_each(|id| verified(&repo, id));
    }
}

fn at_place(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

#[test]
fn a_stream_is_compared_with_the_one_before() {
    let dir = temp();
    let (repo, back) = (dir.path().join("repo"), dir.path().join("back"));
    let mut dump = noise(1, 6 << 20);
    for (chunking, lines) in [
        ("fixed", 0),
        ("fixed", 1),
        ("content", 2),
        ("content", 3),
        ("content", 4),
    ] {
        dump.splice(100_000 * lines..100_000 * lines, *b"one more line");
        let flags = ["--stdin-name", "db.sql", "--quiet", "--chunking", chunking];
        let command = args!["backup", "--to", repo]
            .into_iter()
            .chain(runs::args(flags));
        assert!(runs::fed(command, &dump).status.success());
        let _ = fs::remove_dir_all(&back);
        fullbore(args!["restore", repo, "--to", back, "--quiet"]).ends_with(0);
        assert!(fs::read(back.join("db.sql")).unwrap() == dump, "{lines}");
        verified(&repo, "latest");
    }
    let stored = |index: usize| {
        root(&repo, &ids(&repo)[index])["totals"]["stored_bytes"]
            .as_u64()
            .unwrap()
    };
    assert!(stored(4) < 1 << 20, "{}", stored(4));
}

#[test]
fn what_is_compared_can_be_chosen() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("file"), noise(1, 5000));
    set_mtime(&tree.join("file"), 1_600_000_000, 7);
    let then = shape(&tree);
    backup(&tree, &repo, &[]);
    write(tree.join("file"), noise(2, 5000));
    backup(&tree, &repo, &["--compare", "size"]);
    let root_of = |index: usize| root(&repo, &ids(&repo)[index])["totals"]["kept"].clone();
    assert_eq!(root_of(1), 1, "the size is the same");
    set_mtime(&tree.join("file"), 1_600_000_000, 7);
    backup(
        &tree,
        &repo,
        &["--compare", "mtime", "--base", &ids(&repo)[0]],
    );
    assert_eq!(root_of(2), 1, "the time is the same");
    assert_same(&then, &restored(&repo, "latest"), "not looked at");
    backup(&tree, &repo, &["--compare", "content"]);
    assert_same(&shape(&tree), &restored(&repo, "latest"), "looked at");
    backup(&tree, &repo, &["--full"]);
    assert!(root(&repo, &ids(&repo)[4])["bases"].is_null());
}

/// What somebody took for the same is no proof for those who did not.
#[test]
fn what_was_taken_for_the_same_without_a_look_is_looked_at_later() {
    for compare in ["size", "mtime"] {
        let dir = temp();
        let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
        let [small, large] = ["small", "large"].map(|name| tree.join(name));
        let old = || std::thread::sleep(std::time::Duration::from_secs(3)); // what is younger is read anyway
        write(&small, b"AAAA");
        write(&large, noise(1, 3_000_000));
        old();
        backup(&tree, &repo, &[]);
        let mtime = fs::metadata(&small).unwrap().modified().unwrap();
        for (path, content) in [(&small, b"BBBB".to_vec()), (&large, noise(2, 3_000_000))] {
            write(path, content);
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(mtime)
                .unwrap();
        }
        old();
        backup(&tree, &repo, &["--compare", compare]);
        backup(&tree, &repo, &[]);
        let target = dir.path().join("to");
        fullbore(args!["restore", repo, "--to", target]).ends_with(0);
        assert_eq!(
            fs::read(target.join("small")).unwrap(),
            b"BBBB",
            "{compare}"
        );
        assert!(
            fs::read(target.join("large")).unwrap() == noise(2, 3_000_000),
            "{compare}"
        );
    }
}

#[test]
fn what_could_not_be_compared_is_backed_up_as_a_whole() {
    let dir = temp();
    let (tree, repo, other) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("other"),
    );
    sample(&tree);
    sample(&other);
    backup(&tree, &repo, &[]);
    backup(&other, &repo, &[]);
    backup(&tree, &repo, &["--compress", "lz4"]);
    backup(&tree, &repo, &["--digest", "crc32c"]);
    backup(&tree, &repo, &["--block-size", "64K"]);
    for id in &ids(&repo) {
        assert!(root(&repo, id)["bases"].is_null());
    }
    let base = ids(&repo)[1].clone();
    fullbore(args!["backup", tree, "--to", repo, "--base", base])
        .ends_with(2)
        .has_one_error("another source");
    backup(&tree, &repo, &["--compress", "lz4"]);
    assert_eq!(root(&repo, &ids(&repo)[5])["bases"][0], ids(&repo)[2]);
}

#[test]
fn every_codec_and_digest_can_be_gone_on_from() {
    for (codec, digest) in [
        ("zstd:3", "blake3"),
        ("lz4", "blake3"),
        ("lz4", "crc32c"),
        ("none", "none"),
    ] {
        let dir = temp();
        let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
        sample(&tree);
        write(tree.join("large"), text(9, 3 << 20));
        let options = [
            "--compress",
            codec,
            "--digest",
            digest,
            "--frame-size",
            "64K",
        ];
        backup(&tree, &repo, &options);
        write(tree.join("new"), text(5, 100_000));
        File::options()
            .write(true)
            .open(tree.join("large"))
            .unwrap()
            .write_all_at(b"x", 1 << 20)
            .unwrap();
        let before = shape(&tree);
        backup(&tree, &repo, &options);
        fs::remove_file(tree.join("new")).unwrap();
        backup(&tree, &repo, &options);
        for id in ids(&repo) {
            verified(&repo, &id);
        }
        assert_same(&before, &restored(&repo, &ids(&repo)[1]), codec);
        assert_same(&shape(&tree), &restored(&repo, "latest"), codec);
    }
}

/// What happens to a tree between two backups.
#[derive(Debug, Clone)]
enum Change {
    Write(usize, u64, usize),
    Patch(usize, u64, u64),
    Cut(usize, u64),
    Remove(usize),
    Rename(usize, usize),
    Link(usize, usize),
    Mode(usize, u32),
    Touch(usize, i64),
    Hole(usize, u64),
    SwapDirectories,
}

fn change() -> impl Strategy<Value = Change> {
    let size = prop_oneof![3 => 0usize..5000, 2 => 60_000usize..70_000, 2 => 0usize..700_000];
    prop_oneof![
        4 => (0usize..24, any::<u64>(), size).prop_map(|(file, seed, len)| Change::Write(file, seed, len)),
        4 => (0usize..24, any::<u64>(), 0u64..800_000).prop_map(|(file, seed, offset)| Change::Patch(file, seed, offset)),
        1 => (0usize..24, 0u64..500_000).prop_map(|(file, len)| Change::Cut(file, len)),
        2 => (0usize..24).prop_map(Change::Remove),
        2 => (0usize..24, 0usize..24).prop_map(|(start, end)| Change::Rename(start, end)),
        1 => (0usize..24, 0usize..24).prop_map(|(start, end)| Change::Link(start, end)),
        1 => (0usize..24, 0u32..0o1000).prop_map(|(file, mode)| Change::Mode(file, mode | 0o600)),
        1 => (0usize..24, 0i64..2_000_000_000).prop_map(|(file, time)| Change::Touch(file, time)),
        1 => (0usize..24, 0u64..900_000).prop_map(|(file, size)| Change::Hole(file, size)),
        1 => Just(Change::SwapDirectories),
    ]
}

fn place(tree: &Path, file: usize) -> PathBuf {
    tree.join(format!("d{}/{}/f{file}", file % 3, file % 2))
}

fn happen(tree: &Path, change: &Change) {
    let writable = |file: usize| {
        File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(place(tree, file))
            .unwrap()
    };
    match *change {
        Change::Write(file, seed, len) => {
            let _ = fs::remove_file(place(tree, file));
            write(
                place(tree, file),
                if seed % 2 == 0 {
                    noise(seed, len)
                } else {
                    text(seed, len)
                },
            );
        }
        Change::Patch(file, seed, at) => {
            writable(file).write_all_at(&noise(seed, 1000), at).unwrap()
        }
        Change::Cut(file, len) => writable(file).set_len(len).unwrap(),
        Change::Remove(file) => drop(fs::remove_file(place(tree, file))),
        Change::Rename(from, to) => drop(fs::rename(place(tree, from), place(tree, to))),
        Change::Link(from, to) => drop(fs::hard_link(place(tree, from), place(tree, to))),
        Change::Mode(file, mode) if place(tree, file).exists() => {
            set_mode(&place(tree, file), mode)
        }
        Change::Touch(file, time) if place(tree, file).exists() => {
            set_mtime(&place(tree, file), time, 3)
        }
        Change::Hole(file, size) => {
            let file = writable(file);
            file.set_len(0).unwrap();
            file.set_len(size).unwrap();
            file.write_all_at(&noise(size, 3000), size / 2).unwrap();
        }
        Change::SwapDirectories => {
            for (source, target) in [("d0", "aside"), ("d1", "d0"), ("aside", "d1")] {
                fs::rename(tree.join(source), tree.join(target)).unwrap();
            }
        }
        Change::Mode(..) | Change::Touch(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, max_shrink_iters: 40, ..ProptestConfig::default() })]

    /// Whatever happens between them, and if some are killed, every backup gives back what was there when it was made; and says
    /// the same of it as a full one would.
    #[test]
    fn every_backup_of_a_sequence_is_complete(
        days in vec((vec(change(), 0..8), prop::option::of(0u64..60)), 2..6),
        settle in 0usize..6,
        small in any::<bool>(),
        often in any::<bool>(),
    ) {
        let dir = temp();
        let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
        (0..6).for_each(|i| fs::create_dir_all(place(&tree, i).parent().unwrap()).unwrap());
        let frame: &[&str] = if small { &["--frame-size", "64K", "--block-size", "16K", "--segment-size", "1M"] } else { &[] };
        let options = [frame, if often { &["--checkpoint-interval", "0"] } else { &[] }].concat();
        let mut shapes = Vec::new();
        for (day, (changes, killed)) in days.iter().enumerate() {
            changes.iter().for_each(|change| happen(&tree, change));
            if day == settle {
                sleep(SETTLED);
            }
            if let Some(after) = killed {
                let command = args!["backup", tree, "--to", repo, "--quiet"].into_iter().chain(runs::args(&options));
                let mut child = runs::started(command);
                sleep(Duration::from_millis(*after));
                child.kill().unwrap(); // it may be over
                child.wait().unwrap();
            }
            let id = backup(&tree, &repo, &options)["id"].as_str().unwrap().to_owned();
            shapes.push((id, shape(&tree)));
        }
        for (id, shape) in &shapes {
            assert_same(shape, &restored(&repo, id), id);
            verified(&repo, id);
        }
        let full = dir.path().join("full");
        backup(&tree, &full, &options);
        prop_assert_eq!(listed(&repo), listed(&full));
    }
}

/// All entries of the last backup as `list` has them.
fn listed(repo: &Path) -> Vec<serde_json::Value> {
    fullbore(args![
        "list",
        format!("{}@latest", repo.display()),
        "--json"
    ])
    .ends_with(0)
    .json()
}

#[test]
fn a_backup_of_some_names_is_no_base_of_one_of_all() {
    let dir = temp();
    let (tree, repo, list) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("list"),
    );
    (0..20).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 50_000)));
    write(&list, "f1\nf2\n");
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    let part = ["--files-from", list.to_str().unwrap()];
    for _ in 0..2 {
        let stored = backup(&tree, &repo, &part)["stored_bytes"]
            .as_u64()
            .unwrap();
        assert!(stored < 20_000, "{stored}");
        let stored = backup(&tree, &repo, &[])["stored_bytes"].as_u64().unwrap();
        assert!(stored < 20_000, "{stored}");
    }
    assert_same(&shape(&tree), &restored(&repo, &ids(&repo)[4]), "all");
}

#[test]
fn a_host_may_be_named() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("f"), noise(1, 300_000));
    sleep(SETTLED);
    let stored = |options: &[&str]| {
        backup(&tree, &repo, options)["stored_bytes"]
            .as_u64()
            .unwrap()
    };
    assert!(
        stored(&[]) > 300_000 && stored(&["--host", "pod-1", "--dedup", "source"]) > 300_000,
        "another host's backup is none of this one's"
    );
    assert!(stored(&["--host", "pod-1"]) < 100_000 && stored(&[]) < 100_000);
    let listed = fullbore(args!["list", &repo, "--json"]).ends_with(0).json();
    let hosts: Vec<&str> = listed
        .iter()
        .filter_map(|backup| backup["source"]["host"].as_str())
        .collect();
    assert_eq!(
        hosts.iter().filter(|host| **host == "pod-1").count(),
        2,
        "{hosts:?}"
    );
    fullbore(args!["forget", &repo, "--keep-last", "1"]).ends_with(0);
    assert_eq!(
        fullbore(args!["list", &repo, "--json"])
            .ends_with(0)
            .json()
            .len(),
        2,
        "one of each host"
    );
}

#[test]
fn of_a_file_that_is_only_said_to_be_the_same_not_a_part_is_stored_again() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    let options = [
        "--frame-size",
        "64K",
        "--block-size",
        "64K",
        "--compare",
        "mtime",
    ];
    let big = tree.join("big");
    let put = |content: &[u8], mtime| {
        fs::write(&big, content).unwrap();
        set_mtime(&big, mtime, 0);
    };
    write(&big, "");
    let first = noise(1, 1 << 20);
    put(&first, 1_000_000);
    (0..40).for_each(|i| write(tree.join(format!("n{i}")), noise(100 + i, 400_000)));
    sleep(SETTLED);
    backup(&tree, &repo, &options);
    // Every other block is in the second backup; then nothing but the first of these needs the segment of the first backup.
    let mut second = noise(2, 1 << 20);
    (0..16).filter(|block| block % 2 == 1).for_each(|block| {
        let span = block << 16..(block + 1) << 16;
        second[span.clone()].copy_from_slice(&first[span]);
    });
    put(&second, 2_000_000);
    sleep(SETTLED);
    backup(&tree, &repo, &options);
    (0..40).for_each(|i| fs::remove_file(tree.join(format!("n{i}"))).unwrap());
    sleep(SETTLED);
    backup(&tree, &repo, &options);
    let third = noise(3, 1 << 20);
    put(&third, 2_000_000);
    sleep(SETTLED);
    backup(&tree, &repo, &options);
    let back = dir.path().join("back");
    fullbore(args!["restore", &repo, "--to", &back, "--quiet"]).ends_with(0);
    let found = fs::read(back.join("big")).unwrap();
    assert!(found == second || found == third, "it is of both");
    sleep(SETTLED);
    backup(&tree, &repo, &options[..4]);
    assert_same(
        &shape(&tree),
        &restored(&repo, "latest"),
        "by all that is known",
    );
}
