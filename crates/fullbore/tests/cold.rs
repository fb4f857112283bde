//! Requests that the disk gets for small files that are not in the page cache, counted on a loop
//! device.

use std::{
    fs,
    path::{Path, PathBuf},
};
use testkit::{
    runs::{self, assert_same, fullbore, has, is_root, or_skip, shape, shell, temp, text},
    servers,
};

const FILES: usize = 2_000;

/// A file system on a loop device, with a tree of small files. Unmounted and detached when dropped.
struct ColdDisk {
    device: String,
    place: PathBuf,
}

impl ColdDisk {
    /// Returns `None` if there is no loop device.
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
        for index in 0..FILES {
            let path = disk.tree().join(format!("d{:02}/f{index:04}", index / 100));
            runs::write(path, text(index as u64, 1 + index * 7 % 9000));
        }
        Some(disk)
    }

    fn mount(&self) -> bool {
        shell("mount \"$1\" \"$2\"", args![self.device, self.place]).code == 0
    }

    fn tree(&self) -> PathBuf {
        self.place.join("tree")
    }

    /// Unmounts and mounts the disk, so that nothing of it is in the page cache. All its files are dropped by themselves, too: the
    /// mount namespace of another test may keep the file system alive.
    fn cool(&self) {
        let drop = "import os, sys\nos.sync()\nfor top, _, names in os.walk(sys.argv[1]):\n  for name in names:\n    \
            file = os.open(os.path.join(top, name), os.O_RDONLY)\n    \
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED); os.close(file)";
        shell("python3 -c \"$2\" \"$1\"", args![self.place, drop]).ends_with(0);
        shell("umount \"$1\"", args![self.place]).ends_with(0);
        assert!(self.mount());
    }

    /// Returns the read requests that the device got since it was attached.
    fn reads(&self) -> u64 {
        let name = self.device.trim_start_matches("/dev/");
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Returns the read requests of a backup of the cold tree.
    fn reads_of_backup(&self, to: &Path, more: &[&str]) -> u64 {
        self.reads_of(|| self.back_up(to, more))
    }

    /// Returns the read requests of a run while nothing of the disk is in the page cache.
    fn reads_of(&self, run: impl FnOnce()) -> u64 {
        self.cool();
        let before = self.reads();
        run();
        self.reads() - before
    }

    fn back_up(&self, to: &Path, more: &[&str]) {
        let args = args!["backup", self.tree(), "--to", to, "--quiet"];
        let more = more.iter().map(std::ffi::OsString::from);
        fullbore(args.into_iter().chain(more)).ends_with(0);
    }

    /// Returns the bytes of the tree's files that are in the page cache.
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
        let path_of = |name: &str| dir.path().join(name);
        let batched = disk.reads_of_backup(&path_of("batched"), &[]);
        let single = disk.reads_of_backup(&path_of("single"), &["--no-tricks"]);
        assert!(
            batched <= FILES as u64 / 5 && single >= FILES as u64 * 9 / 10,
            "{make}: {batched} requests for {FILES} files, {single} without tricks"
        );
        let restored = path_of("restored");
        fullbore(args![
            "restore",
            path_of("batched"),
            "--to",
            restored,
            "--quiet"
        ])
        .ends_with(0);
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
    for index in (0..FILES).step_by(2) {
        let path = disk.tree().join(format!("d{:02}/f{index:04}", index / 100));
        fs::write(path, text(index as u64 + 7, 5000)).unwrap();
    }
    let later = disk.reads_of_backup(&store, &[]);
    assert!(
        unchanged <= 300 && later <= unchanged + changed as u64 / 4,
        "{unchanged} requests where nothing changed, {later} where {changed} files did"
    );
}

#[test]
fn a_tree_is_compared_with_a_backup_in_few_requests() {
    let dir = temp();
    let Some(disk) = ColdDisk::with_tree(dir.path(), "mkfs.ext4 -q -F") else {
        return;
    };
    let store = dir.path().join("store");
    disk.back_up(&store, &[]);
    let verify = |more: &[&str]| {
        let args = args!["verify", store, "--against", disk.tree(), "--quiet"];
        let more = more.iter().map(std::ffi::OsString::from);
        disk.reads_of(|| drop(fullbore(args.into_iter().chain(more)).ends_with(0)))
    };
    let batched = verify(&[]);
    let single = verify(&["--no-tricks"]);
    assert!(
        batched <= FILES as u64 / 4 && single >= FILES as u64 * 9 / 10,
        "{batched} requests for {FILES} files, {single} without tricks"
    );
    let changed = disk.tree().join("d07/f0777");
    let len = fs::metadata(&changed).unwrap().len() as usize;
    fs::write(&changed, vec![b'x'; len]).unwrap();
    disk.cool();
    let ran = fullbore(args!["verify", store, "--against", disk.tree()]);
    assert!(
        ran.code != 0 && ran.out.contains("d07/f0777: other content"),
        "{}",
        ran.out
    );
}

#[test]
fn a_restore_with_delta_compares_cold_files_in_few_requests() {
    let dir = temp();
    let Some(disk) = ColdDisk::with_tree(dir.path(), "mkfs.ext4 -q -F") else {
        return;
    };
    let store = dir.path().join("store");
    disk.back_up(&store, &[]);
    let before = shape(&disk.tree());
    let restore = |more: &[&str]| {
        let args = args!["restore", store, "--to", disk.tree(), "--delta", "--quiet"];
        let more = more.iter().map(std::ffi::OsString::from);
        disk.reads_of(|| drop(fullbore(args.into_iter().chain(more)).ends_with(0)))
    };
    fs::write(disk.tree().join("d07/f0777"), "changed").unwrap();
    let batched = restore(&[]);
    let single = restore(&["--no-tricks"]);
    assert!(
        batched <= FILES as u64 / 4 && single >= FILES as u64 * 9 / 10,
        "{batched} requests for {FILES} files, {single} without tricks"
    );
    assert_same(&before, &shape(&disk.tree()), "restored");
}

#[test]
fn a_cluster_of_small_relations_is_read_in_few_requests() {
    let dir = temp();
    let Some(version) = servers::debian() else {
        return;
    };
    let Some(disk) = ColdDisk::with_tree(dir.path(), "mkfs.ext4 -q -F") else {
        return;
    };
    let server = version.start(&[], &["full_page_writes = off"]);
    server.psql(
        "DO $$ BEGIN FOR at IN 1..500 LOOP
            EXECUTE format('CREATE TABLE t%s AS SELECT %s AS number', at, at);
        END LOOP; END $$",
    );
    server.stop("fast");
    let cluster = disk.place.join("cluster");
    shell("cp -a \"$1\" \"$2\"", args![server.data(), cluster]).ends_with(0);
    let files = shell("find \"$1\" -type f -size +0 | wc -l", args![cluster]).ends_with(0);
    let files: u64 = files.out.trim().parse().unwrap();
    let backup = |target: &str, more: &[&str]| {
        let args = args![
            "backup",
            cluster,
            "--offline",
            "--to",
            dir.path().join(target),
            "--quiet"
        ];
        let more = more.iter().map(std::ffi::OsString::from);
        disk.reads_of(|| drop(fullbore(args.into_iter().chain(more)).ends_with(0)))
    };
    let batched = backup("batched", &[]);
    let single = backup("single", &["--no-tricks"]);
    assert!(
        batched <= files * 3 / 10 && single >= files * 8 / 10,
        "{batched} requests for {files} files, {single} without tricks"
    );
    let (store, restored) = (dir.path().join("batched"), dir.path().join("restored"));
    fullbore(args!["restore", store, "--to", restored, "--quiet"]).ends_with(0);
    let verify = version.program("pg_verifybackup");
    shell("\"$1\" -n \"$2\"", args![verify, restored]).ends_with(0);
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
    let target = dir.path().join("cold");
    disk.reads_of_backup(&target, &[]);
    assert_eq!(disk.cached_bytes(), 0);
    disk.cool();
    let warm = disk.tree().join("d07");
    shell("cat \"$1\"/* > /dev/null", args![warm]).ends_with(0);
    let before = disk.cached_bytes();
    disk.back_up(&dir.path().join("warm"), &[]);
    assert!(before > 0);
    assert_eq!(disk.cached_bytes(), before);
}
