//! How many requests the disk gets for small files that are not in the page cache, counted on a loop device of its own.

#![allow(missing_docs)]

mod runs;

use runs::{assert_same, fullbore, has, is_root, or_skip, shape, shell, temp, text};
use std::{
    fs,
    path::{Path, PathBuf},
};

const FILES: usize = 2_000;

/// A file system on a loop device, with a tree of small files. It is unmounted and detached when it is dropped.
struct ColdDisk {
    device: String,
    place: PathBuf,
}

impl ColdDisk {
    /// `None` where no loop device can be had.
    fn with_tree(dir: &Path, make: &str) -> Option<Self> {
        let program = make.split(' ').next().unwrap_or_default();
        let tools = has("losetup") && has(program);
        if !or_skip(is_root() && tools, "only root makes loop devices") {
            return None;
        }
        let image = dir.join("image");
        fs::File::create(&image)
            .unwrap()
            .set_len(512 << 20)
            .unwrap();
        let line = format!("{make} \"$1\" >&2 && losetup -f --show \"$1\"");
        let attached = shell(&line, args![image]);
        if !or_skip(attached.code == 0, "there is no loop device") {
            return None;
        }
        let place = dir.join("disk");
        fs::create_dir(&place).unwrap();
        let disk = Self {
            device: attached.out.trim().to_owned(),
            place,
        };
        if !or_skip(disk.mount(), "a loop device cannot be mounted here") {
            return None;
        }
        for at in 0..FILES {
            let path = disk.tree().join(format!("d{:02}/f{at:04}", at / 100));
            runs::write(path, text(at as u64, 1 + at * 7 % 9000));
        }
        Some(disk)
    }

    fn mount(&self) -> bool {
        shell("mount \"$1\" \"$2\"", args![self.device, self.place]).code == 0
    }

    fn tree(&self) -> PathBuf {
        self.place.join("tree")
    }

    /// Forget all that is in memory of it.
    fn cool(&self) {
        shell("umount \"$1\"", args![self.place]).ends_with(0);
        assert!(self.mount());
    }

    /// Requests to read that the device was given since it was attached.
    fn reads(&self) -> u64 {
        let name = self.device.trim_start_matches("/dev/");
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Requests to read that a backup of the cold tree makes.
    fn reads_of_backup(&self, to: &Path, more: &[&str]) -> u64 {
        self.cool();
        let before = self.reads();
        self.back_up(to, more);
        self.reads() - before
    }

    fn back_up(&self, to: &Path, more: &[&str]) {
        let args = args!["backup", self.tree(), "--to", to, "--quiet"];
        let more = more.iter().map(std::ffi::OsString::from);
        fullbore(args.into_iter().chain(more)).ends_with(0);
    }

    /// Bytes of the tree's files that are in the page cache.
    fn cached_bytes(&self) -> u64 {
        let line =
            "find \"$1\" -type f -print0 | xargs -0 fincore --bytes --noheadings --output RES";
        let found = shell(line, args![self.tree()]).ends_with(0);
        let sizes = found.out.lines().map(|line| line.trim().parse::<u64>());
        sizes.map(Result::unwrap).sum()
    }
}

impl Drop for ColdDisk {
    fn drop(&mut self) {
        shell("umount \"$1\"", args![self.place]);
        shell("losetup -d \"$1\"", args![self.device]);
    }
}

#[test]
fn cold_small_files_cost_few_requests_to_the_disk() {
    for make in ["mkfs.ext4 -q -F", "mkfs.xfs -q -f"] {
        let dir = temp();
        let Some(disk) = ColdDisk::with_tree(dir.path(), make) else {
            continue;
        };
        let before = shape(&disk.tree());
        let to = |name: &str| dir.path().join(name);
        let batched = disk.reads_of_backup(&to("batched"), &[]);
        let single = disk.reads_of_backup(&to("single"), &["--no-tricks"]);
        assert!(
            batched <= FILES as u64 / 5 && single >= FILES as u64 * 9 / 10,
            "{make}: {batched} requests for {FILES} files, {single} without tricks"
        );
        let restored = to("restored");
        fullbore(args!["restore", to("batched"), "--to", restored, "--quiet"]).ends_with(0);
        assert_same(&before, &shape(&restored), make);
    }
}

#[test]
fn changed_files_of_a_later_backup_are_read_in_few_requests_and_unchanged_ones_not_at_all() {
    let dir = temp();
    let Some(disk) = ColdDisk::with_tree(dir.path(), "mkfs.ext4 -q -F") else {
        return;
    };
    let store = dir.path().join("store");
    shell(
        "find \"$1\" -exec touch -h -d @1600000000 {} +",
        args![disk.tree()],
    )
    .ends_with(0);
    std::thread::sleep(std::time::Duration::from_secs(3)); // else all files are as young as the backup
    disk.back_up(&store, &[]);
    let unchanged = disk.reads_of_backup(&store, &[]);
    let changed = FILES / 2;
    for at in (0..FILES).step_by(2) {
        let path = disk.tree().join(format!("d{:02}/f{at:04}", at / 100));
        fs::write(path, text(at as u64 + 7, 5000)).unwrap();
    }
    let later = disk.reads_of_backup(&store, &[]);
    assert!(
        unchanged <= 300 && later <= unchanged + changed as u64 / 4,
        "{unchanged} requests where nothing changed, {later} where {changed} files did"
    );
}

#[test]
fn a_backup_leaves_the_page_cache_as_it_was() {
    let dir = temp();
    let Some(disk) = ColdDisk::with_tree(dir.path(), "mkfs.ext4 -q -F") else {
        return;
    };
    if !or_skip(has("fincore"), "there is no fincore") {
        return;
    }
    let to = dir.path().join("cold");
    disk.reads_of_backup(&to, &[]);
    assert_eq!(disk.cached_bytes(), 0);
    disk.cool();
    let warm = disk.tree().join("d07");
    shell("cat \"$1\"/* > /dev/null", args![warm]).ends_with(0);
    let before = disk.cached_bytes();
    disk.back_up(&dir.path().join("warm"), &[]);
    assert!(before > 0);
    assert_eq!(disk.cached_bytes(), before);
}
