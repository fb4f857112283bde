//! Changes of keys on a disk that is full, or is full after the next few blocks.

use super::{
    runs::{self, Mount, Ran, shell},
    world::{Person, World, files_below},
};
use std::{collections::BTreeMap, ffi::OsString, fs, path::PathBuf};

const BLOCK: u64 = 4096;

/// More blocks than any of these changes needs.
const MOST_BLOCKS: u64 = 80;

/// A repository on a file system of its own, with keys of two people and a host.
struct SmallDisk {
    world: World,
    people: [Person; 3],
    _mount: Mount,
}

impl SmallDisk {
    fn new() -> Option<Self> {
        let world = World::new();
        let mount = Mount::tmpfs(&world.path("disk"), "16m")?;
        let people = ["me", "two", "host"].map(|name| world.person(name));
        let disk = Self {
            world,
            people,
            _mount: mount,
        };
        let [me, two, host] = &disk.people;
        disk.world.init(&disk.repository(), me);
        disk.run(args![
            "key",
            "add",
            disk.repository(),
            "--name",
            "two",
            "--for",
            two.recipient
        ])
        .ends_with(0);
        disk.run(args![
            "key",
            "put",
            disk.repository(),
            "--name",
            "web1",
            "--for",
            host.recipient
        ])
        .ends_with(0);
        for person in &disk.people {
            disk.world.backup(&disk.repository(), person);
        }
        Some(disk)
    }

    fn repository(&self) -> PathBuf {
        self.world.path("disk/repository")
    }

    fn filler(&self) -> PathBuf {
        self.world.path("disk/filler")
    }

    fn run(&self, args: impl IntoIterator<Item = OsString>) -> Ran {
        self.world.run_as(&self.people[0], args)
    }

    /// Leaves so many blocks free.
    fn fill(&self, blocks: u64) {
        let fill = "dd if=/dev/zero of=\"$1\" bs=4k 2>/dev/null; true";
        shell(fill, args![self.filler()]);
        let file = fs::File::options().write(true).open(self.filler()).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len - blocks * BLOCK).unwrap();
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = files_below(&self.repository().join("keys")).into_iter();
        files
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    /// Everybody reads, and adds a backup that counts; nothing is damaged.
    fn assert_usable(&self, people: &[&Person], case: &str) {
        for person in people {
            self.world.backup(&self.repository(), person);
        }
        let verify = self.run(args!["verify", self.repository()]);
        assert_eq!(verify.code, 0, "{case}: {}{}", verify.out, verify.err);
        self.world
            .assert_restores(&self.repository(), &self.people[0], case);
    }

    /// Runs a change with more and more free blocks until it succeeds; before that it changes nothing, and says so.
    fn assert_whole(&self, change: Vec<OsString>) {
        let case = |blocks| format!("{} with {blocks} free blocks", change[1].display());
        let (before, state) = (self.files(), self.world.path("state"));
        let kept = self.world.path("kept state");
        let _ = fs::remove_dir_all(&kept);
        shell("cp -r \"$1\" \"$2\"", args![state, kept]).ends_with(0);
        for blocks in 0..MOST_BLOCKS {
            let case = case(blocks);
            self.fill(blocks);
            let ran = self.run(change.clone());
            fs::remove_file(self.filler()).unwrap();
            if ran.code == 0 {
                assert!(blocks > 0, "{case}: the disk was not full");
                return;
            }
            assert_eq!(ran.code, 1, "{case}: {}", ran.err);
            let ran = ran.has_one_error("no space left on device");
            assert!(
                ran.err.contains("run the same command again"),
                "{case}: {}",
                ran.err
            );
            assert!(before == self.files(), "{case}: {:?}", self.files().keys());
            assert_eq!(
                runs::names(&self.repository().join("probes")),
                [""; 0],
                "{case}"
            );
            if blocks % 8 == 0 {
                self.assert_usable(&self.people.each_ref(), &case);
            }
            fs::remove_dir_all(&state).unwrap();
            shell("cp -r \"$2\" \"$1\"", args![state, kept]).ends_with(0);
        }
        panic!("{}", case(MOST_BLOCKS));
    }
}

#[test]
fn keys_are_changed_on_a_full_disk_as_a_whole_or_not_at_all() {
    let Some(disk) = SmallDisk::new() else {
        return;
    };
    let repository = disk.repository();
    let [me, two, host] = &disk.people;
    let third = disk.world.person("third");
    let named = |verb: &str, name: &str| args!["key", verb, repository, "--name", name].to_vec();
    let for_third =
        |verb, name| [named(verb, name), args!["--for", third.recipient].into()].concat();
    disk.assert_whole(for_third("add", "three"));
    disk.assert_whole(for_third("put", "web3"));
    disk.assert_usable(&[me, two, host, &third], "added");
    disk.assert_whole(args!["key", "rotate", repository, "--yes"].into());
    disk.assert_usable(&[me, two, host, &third], "rotated");
    disk.assert_whole(named("remove", "two"));
    disk.assert_usable(&[me, host, &third], "removed");
    let listed = disk.world.run_as(two, args!["list", repository]);
    assert_eq!(listed.code, 1, "{}", listed.out);
}
