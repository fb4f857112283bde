//! The same content of several sources is stored once, and whoever lies about contents is found out.

use crate::runs::{self, Ran, assert_same, fullbore, names, noise, set_mtime, shape, temp, text};
use fullbore_format::{digest::Digest, page::ManifestPage, root::Root, seal::seal};
use serde_json::Value;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

struct World {
    dir: tempfile::TempDir,
}

const FILES: u64 = 40;

/// Writes what all hosts have: small files, files of several sizes, and a large one.
fn write_tree(tree: &Path, moment: i64) {
    for number in 0..FILES {
        let file = tree.join(format!("bin/{number:02}"));
        runs::write(&file, noise(number, 1500 + 7000 * number as usize));
        set_mtime(&file, moment, 0);
    }
    runs::write(tree.join("large"), noise(99, 3_300_000));
}

impl World {
    /// Trees of three hosts, which differ in times and inodes, and in one file.
    fn new() -> Self {
        let world = Self { dir: temp() };
        for (number, host) in ["a", "b", "c"].into_iter().enumerate() {
            write_tree(&world.tree(host), 1_600_000_000 + number as i64);
            runs::write(
                world.tree(host).join("etc/hostname"),
                text(number as u64, 5000),
            );
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tree(&self, host: &str) -> PathBuf {
        self.path(host)
    }

    fn repository(&self) -> PathBuf {
        self.path("repo")
    }

    fn args(&self, host: &str, options: &[&str]) -> Vec<OsString> {
        let args = args!["backup", self.tree(host), "--host", host, "--json"];
        args.into_iter()
            .chain(options.iter().map(OsString::from))
            .collect()
    }

    fn backup_to(&self, repository: &Path, host: &str, options: &[&str]) -> Value {
        let args = self.args(host, options);
        let ran = fullbore(args.into_iter().chain(args!["--to", repository]));
        ran.ends_with(0).json().pop().unwrap()
    }

    fn backup(&self, host: &str, options: &[&str]) -> Value {
        self.backup_to(&self.repository(), host, options)
    }

    #[track_caller]
    fn assert_restores(&self, from: &Path, host: &str) {
        let dir = temp();
        let back = dir.path().join("back");
        fullbore(args![
            "restore", from, "--host", host, "--to", back, "--quiet"
        ])
        .ends_with(0);
        assert_same(&shape(&self.tree(host)), &shape(&back), host);
    }

    #[track_caller]
    fn assert_all_is_sound(&self, hosts: &[&str]) {
        let repository = self.repository();
        fullbore(args!["verify", repository, "--data", "-q"]).ends_with(0);
        for host in hosts {
            self.assert_restores(&repository, host);
        }
    }

    fn file_of(&self, result: &Value, name: &str) -> PathBuf {
        let id = result["id"].as_str().unwrap();
        self.repository().join("backups").join(id).join(name)
    }
}

fn stored(result: &Value) -> u64 {
    result["stored_bytes"].as_u64().unwrap()
}

fn shared_with(result: &Value) -> Vec<String> {
    let ids = result["shared_with"].as_array().unwrap();
    ids.iter()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect()
}

fn id(result: &Value) -> String {
    result["id"].as_str().unwrap().to_owned()
}

#[track_caller]
fn assert_is_shared(first: &Value, second: &Value) {
    assert_eq!(shared_with(second), [id(first)]);
    assert!(stored(second) * 20 < stored(first), "{second}");
}

#[track_caller]
fn assert_is_stored(first: &Value, second: &Value) {
    assert_eq!(shared_with(second), [""; 0]);
    assert!(stored(second) * 10 > stored(first) * 9, "{second}");
}

#[test]
fn content_of_other_sources_is_stored_once_and_outlives_them() {
    let world = World::new();
    let a = world.backup("a", &[]);
    let b = world.backup("b", &[]);
    assert_is_shared(&a, &b);
    assert_eq!(b["bases"].as_array().unwrap().len(), 0);
    world.assert_all_is_sound(&["a", "b"]);
    // Incremental backups go on as usual.
    runs::write(world.tree("b").join("etc/new"), noise(1000, 20_000));
    let again = world.backup("b", &[]);
    assert_eq!(again["bases"][0], b["id"]);
    assert!(stored(&again) < 40_000, "{again}");
    fullbore(args!["forget", "--yes", world.repository(), id(&a), id(&b)]).ends_with(0);
    fullbore(args!["prune", world.repository()]).ends_with(0);
    world.assert_all_is_sound(&["b"]);
    // The content is found by whoever has it now.
    let c = world.backup("c", &[]);
    assert_eq!(shared_with(&c), [id(&again)]);
    assert!(stored(&c) * 20 < stored(&a), "{c}");
    fullbore(args!["forget", "--yes", world.repository(), id(&again)]).ends_with(0);
    fullbore(args!["prune", world.repository()]).ends_with(0);
    world.assert_all_is_sound(&["c"]);
    fullbore(args!["forget", "--yes", world.repository(), id(&c)]).ends_with(0);
    fullbore(args!["prune", world.repository()]).ends_with(0);
    assert_eq!(names(&world.repository().join("backups")), [""; 0]);
}

#[test]
fn an_export_of_a_backup_that_refers_to_others_needs_none_of_them() {
    let world = World::new();
    world.backup("a", &[]);
    let b = world.backup("b", &[]);
    let archive = world.path("b.tar.zst");
    let from = format!("{}@{}", world.repository().display(), id(&b));
    fullbore(args!["export", from, "--to", archive]).ends_with(0);
    fs::rename(world.repository(), world.path("away")).unwrap();
    fullbore(args!["verify", archive, "--data", "-q"]).ends_with(0);
    world.assert_restores(&archive, "b");
    let unpacked = world.path("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let line = "zstd -dc \"$1\" | tar -x -C \"$2\"";
    runs::shell(line, args![archive, unpacked]).ends_with(0);
    assert_same(&shape(&world.tree("b")), &shape(&unpacked), "tar");
}

#[test]
fn who_wants_no_content_of_others_gets_none() {
    let world = World::new();
    let a = world.backup("a", &[]);
    for options in [
        &["--dedup", "source"][..],
        &["--full"],
        &["--digest", "crc32c"],
    ] {
        assert_is_stored(&a, &world.backup("b", options));
    }
    // Frames of another codec or blocks of another size do not fit.
    let c = world.backup("c", &["--compress", "lz4"]);
    assert_is_stored(&a, &c);
    world.assert_all_is_sound(&["a", "b", "c"]);
}

#[test]
fn what_cannot_be_shared_is_refused_if_it_was_asked_for() {
    let world = World::new();
    world.backup("a", &[]);
    let refused = |options: &[&str], to: &[PathBuf]| -> Ran {
        let mut args = world.args("b", &["--dedup", "repository"]);
        args.extend(options.iter().map(OsString::from));
        for to in to {
            args.extend(args!["--to", to]);
        }
        fullbore(args).ends_with(2)
    };
    refused(&[], &[world.path("b.tar.zst")]).has_one_error("only backups in a repository can");
    refused(&[], &[world.repository(), world.path("other")]).has_one_error("several repositories");
    refused(&["--digest", "none"], &[world.repository()]).has_one_error("only BLAKE3");
    assert!(!world.path("b.tar.zst").exists() && !world.path("other").exists());
    // Asked for and possible.
    let b = world.backup("b", &["--dedup", "repository"]);
    assert_eq!(shared_with(&b).len(), 1);
}

#[test]
fn several_repositories_and_a_copy_of_one_backup_are_complete() {
    let world = World::new();
    let a = world.backup("a", &[]);
    let (first, second) = (world.repository(), world.path("second"));
    let mut args = world.args("b", &[]);
    args.extend(args!["--to", first, "--to", second]);
    let both = fullbore(args).ends_with(0).json().pop().unwrap();
    assert_is_stored(&a, &both);
    for repository in [&first, &second] {
        world.assert_restores(repository, "b");
    }
    // The copy brings what it needs of other backups, which it does not list.
    let c = world.backup("c", &[]);
    let third = world.path("third");
    let from = format!("{}@{}", first.display(), id(&c));
    fullbore(args!["copy", from, third]).ends_with(0);
    fs::rename(&first, world.path("away")).unwrap();
    fullbore(args!["verify", third, "--data", "-q"]).ends_with(0);
    world.assert_restores(&third, "c");
    fullbore(args!["prune", third]).ends_with(0);
    world.assert_restores(&third, "c");
    // Its content serves other sources there, after a comparison.
    let b = world.backup_to(&third, "b", &[]);
    assert_eq!(shared_with(&b), [id(&c)]);
    assert!(stored(&b) * 20 < stored(&a), "{b}");
    world.assert_restores(&third, "b");
}

#[test]
fn a_list_that_lies_or_is_damaged_costs_space_and_nothing_else() {
    let world = World::new();
    let a = world.backup("a", &[]);
    let list = world.file_of(&a, "contents");
    let right = fs::read(&list).unwrap();
    let (header, files) = right.split_at(20);
    let mut files: Vec<[u8; 16]> = files.as_chunks().0.to_vec();
    assert!(files.len() as u64 > FILES);
    // Each digest leads to the record of the file before.
    let numbers: Vec<[u8; 2]> = files.iter().map(|file| [file[14], file[15]]).collect();
    let count = files.len();
    for (index, file) in files.iter_mut().enumerate() {
        file[14..].copy_from_slice(&numbers[(index + count - 1) % count]);
    }
    let moved = [header, files.as_flattened()].concat();
    let beyond: Vec<u8> = { right.iter().enumerate() }
        .map(|(index, byte)| {
            if index >= 20 && index % 16 >= 2 && index % 16 < 4 {
                0xff
            } else {
                *byte
            }
        })
        .collect();
    let mut elsewhere = right.clone();
    elsewhere[8..16].fill(0x7f);
    let mut endless = right.clone();
    endless[16..20].fill(0xff);
    let lists = [
        moved,
        beyond,
        elsewhere,
        endless,
        noise(1, 100_000),
        b"FBCONT_1".to_vec(),
        Vec::new(),
    ];
    for list_of_now in lists {
        fs::write(&list, &list_of_now).unwrap();
        let b = world.backup("b", &[]);
        assert!(stored(&b) * 3 > stored(&a), "{b}");
        world.assert_all_is_sound(&["a", "b"]);
        fullbore(args!["forget", "--yes", world.repository(), id(&b)]).ends_with(0);
        fullbore(args!["prune", world.repository()]).ends_with(0);
    }
    // A list that ends early is of use as far as it goes.
    fs::write(&list, &right[..right.len() / 2]).unwrap();
    let b = world.backup("b", &[]);
    assert_eq!(shared_with(&b), [id(&a)]);
    world.assert_all_is_sound(&["a", "b"]);
}

/// Changes the digests in the first page of a backup so that every file claims to have the content of `wanted`, as the maker of a
/// backup can, with true checksums of the page and the root.
fn lie(world: &World, result: &Value, wanted: &[u8]) {
    let manifest = world.file_of(result, "manifest");
    let root_file = world.file_of(result, "root.json");
    let mut root = Root::open(&fs::read(&root_file).unwrap(), "root").unwrap();
    assert_eq!(root.pages.len(), 1);
    let mut page = ManifestPage::decode(&fs::read(&manifest).unwrap()).unwrap();
    let mut lies = 0;
    for record in &mut page.records {
        if record.entry.is_file() && record.entry.size() == wanted.len() as u64 {
            record.digest = Some(Digest::Blake3(*blake3::hash(wanted).as_bytes()));
            lies += 1;
        }
    }
    assert!(lies > 0);
    let stored = page.encode().unwrap();
    fs::write(&manifest, &stored).unwrap();
    root.pages[0].bytes = stored.len() as u64;
    root.pages[0].digest = blake3::hash(&stored).to_hex().to_string();
    fs::write(&root_file, seal(&root).unwrap()).unwrap();
    fs::write(world.file_of(result, "contents"), list_of(&page)).unwrap();
}

fn list_of(page: &ManifestPage) -> Vec<u8> {
    let group = fullbore_format::content_list::encode_page(page, 0);
    [&fullbore_format::content_list::MAGIC[..], &group].concat()
}

#[test]
fn a_host_that_lies_about_its_content_is_found_out() {
    let world = World::new();
    // The host that may only add has a file of the same length, and says that it is that of the victim.
    let wanted = noise(5000, 50_000);
    runs::write(world.tree("a").join("bait"), noise(6000, 50_000));
    runs::write(world.tree("b").join("precious"), &wanted);
    let a = world.backup("a", &[]);
    lie(&world, &a, &wanted);
    fs::write(world.file_of(&a, "unproven"), "").unwrap();
    let b = world.backup("b", &[]);
    // The rest of its content is as it says, and serves.
    assert_eq!(shared_with(&b), [id(&a)]);
    assert!((50_000..400_000).contains(&stored(&b)), "{b}");
    world.assert_restores(&world.repository(), "b");
    let from = format!("{}@{}", world.repository().display(), id(&b));
    fullbore(args!["verify", from, "--data", "-q"]).ends_with(0);
}

#[test]
fn missing_segments_and_pages_of_others_are_stored_again() {
    let world = World::new();
    let a = world.backup("a", &[]);
    let away = world.path("segment");
    fs::rename(world.file_of(&a, "s01-000001.tar.zst"), &away).unwrap();
    let b = world.backup("b", &[]);
    assert_is_stored(&a, &b);
    world.assert_restores(&world.repository(), "b");
    fs::rename(&away, world.file_of(&a, "s01-000001.tar.zst")).unwrap();
    // A manifest is damaged; its pages have copies.
    let manifest = world.file_of(&a, "manifest");
    let mut pages = fs::read(&manifest).unwrap();
    let middle = pages.len() / 2;
    pages[middle] ^= 1;
    fs::write(&manifest, pages).unwrap();
    let c = world.backup("c", &[]);
    assert!(shared_with(&c).contains(&id(&b)), "{c}");
    world.assert_restores(&world.repository(), "c");
}

#[test]
fn repair_writes_a_missing_list_again() {
    let world = World::new();
    let a = world.backup("a", &[]);
    runs::write(world.tree("b").join("own"), noise(7, 50_000));
    let b = world.backup("b", &[]);
    let list = world.file_of(&a, "contents");
    let right = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    fullbore(args!["repair", world.repository(), "--yes"]).ends_with(0);
    assert!(fs::read(&list).unwrap() == right);
    let ran = fullbore(args!["repair", world.repository(), "--yes"]).ends_with(0);
    assert!(!ran.out.contains("contents") && !ran.err.contains("contents"));
    let c = world.backup("c", &[]);
    assert!(shared_with(&c).contains(&id(&a)) || shared_with(&c).contains(&id(&b)));
    assert!(stored(&c) * 20 < stored(&a), "{c}");
    world.assert_all_is_sound(&["a", "b", "c"]);
}

#[test]
fn a_source_that_shares_little_of_a_large_segment_still_shares_it_the_next_time() {
    let world = World::new();
    for number in 0..120 {
        runs::write(
            world.tree("a").join(format!("much/{number}")),
            noise(500 + number, 200_000),
        );
    }
    let a = world.backup("a", &[]);
    let b = world.backup("b", &[]);
    assert_eq!(shared_with(&b), [id(&a)]);
    let again = world.backup("b", &[]);
    assert!(stored(&again) < 100_000, "{again}");
    // When nobody else needs the rest, it is worth storing again what is left.
    fullbore(args!["forget", "--yes", world.repository(), id(&a)]).ends_with(0);
    world.backup("b", &[]);
    fullbore(args![
        "forget",
        "--yes",
        world.repository(),
        id(&b),
        id(&again)
    ])
    .ends_with(0);
    fullbore(args!["prune", world.repository()]).ends_with(0);
    world.assert_all_is_sound(&["b"]);
    let ids = names(&world.repository().join("backups"));
    let left: u64 = { ids.iter() }
        .flat_map(|id| fs::read_dir(world.repository().join("backups").join(id)).unwrap())
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(left < stored(&a), "{left}");
}
