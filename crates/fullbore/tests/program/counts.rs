//! What a run costs, counted and not timed: system calls, memory, bytes read.

use crate::runs;
use crate::runs::{assert_same, fullbore, has, or_skip, shape, shell, temp, text};
use fullbore_engine::verify::Verify;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::select::BackupFilter;
use fullbore_storage::{
    CoalescedObjects, LocalObjects, MemoryObjects, Objects, Operation, PutIf, Recording, Storages,
};
use std::{
    collections::HashMap, fs, num::NonZeroUsize, os::unix::fs::FileExt, path::Path, sync::Arc,
};

/// So many that what a run costs by itself, about 2,000 calls, does not count.
const FILES: usize = 8_000;

/// Many small files in few directories.
fn many(tree: &Path) {
    for dir in 0..8 {
        fs::create_dir_all(tree.join(format!("d{dir:02}"))).unwrap();
        for file in 0..FILES / 8 {
            let path = tree.join(format!("d{dir:02}/f{file:04}"));
            fs::write(path, text(file as u64, 100 + file * 7 % 3000)).unwrap();
        }
    }
}

/// System calls of a run, without those of the threads that look at the machine twenty times a second:
/// how many these make depends on how long the run takes.
fn calls(dir: &Path, line: &str, args: impl IntoIterator<Item = std::ffi::OsString>) -> usize {
    let trace = dir.join("calls");
    let all = [trace.clone().into_os_string(), runs::FULLBORE.into()]
        .into_iter()
        .chain(args);
    let ran = shell(&format!("strace -f -qq -o \"$1\" \"$2\" {line}"), all);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let mut threads: HashMap<&str, (usize, usize)> = HashMap::new();
    let trace = fs::read_to_string(trace).unwrap();
    for (thread, call) in trace.lines().filter_map(|line| line.split_once(' ')) {
        let (calls, looks) = threads.entry(thread).or_default();
        *calls += usize::from(
            call.trim_start()
                .starts_with(|c: char| c.is_ascii_lowercase()),
        );
        // What such a look reads of `/proc/stat`.
        *looks += usize::from(call.contains("\"cpu "));
    }
    let works = threads.values().filter(|(_, looks)| *looks < 4);
    works.map(|(calls, _)| calls).sum()
}

/// Peak of the resident memory of a run, in KiB.
fn peak(args: impl IntoIterator<Item = std::ffi::OsString>) -> u64 {
    let script = "import resource, subprocess, sys\nsubprocess.run(sys.argv[1:], check=True)\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let all = [script.into(), runs::FULLBORE.into()]
        .into_iter()
        .chain(args);
    shell("python3 -c \"$@\"", all)
        .ends_with(0)
        .out
        .lines()
        .last()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn small_files_cost_few_system_calls_and_no_memory() {
    let dir = temp();
    // Always in memory: a file that is not in the page cache costs more calls and fewer requests.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, store, back) = (
        memory.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    many(&tree);
    if or_skip(has("strace"), "there is no strace") {
        let backup = calls(
            dir.path(),
            "backup \"$3\" --to \"$4\" --quiet",
            args![tree, store],
        );
        let restore = calls(
            dir.path(),
            "restore \"$3\" --to \"$4\" --quiet",
            args![store, back],
        );
        let each = |calls: usize| calls as f64 / FILES as f64;
        // Of the backup one call drops the pages of the file; other file systems need no call for it.
        assert!(
            each(backup) <= 6.0 && each(restore) <= 6.0,
            "backup {}, restore {}",
            each(backup),
            each(restore)
        );
        assert_same(&shape(&tree), &shape(&back), "under strace");
    }
    if or_skip(has("python3"), "there is no python3") {
        for memory in [32, 128] {
            let target = dir.path().join(format!("m{memory}"));
            let memory_flag = format!("{memory}M");
            let kib = peak(args![
                "backup",
                tree,
                "--to",
                target,
                "--memory",
                memory_flag,
                "--quiet"
            ]);
            assert!(
                kib <= (memory + 64) << 10,
                "backup: {kib} KiB of {memory} MiB and 64"
            );
            let kib = peak(args![
                "restore",
                target,
                "--to",
                dir.path().join(format!("b{memory}")),
                "--memory",
                memory_flag,
                "--quiet"
            ]);
            assert!(
                kib <= (memory + 64) << 10,
                "restore: {kib} KiB of {memory} MiB and 64"
            );
        }
    }
}

#[test]
fn attributes_larger_than_their_files_cost_no_memory() {
    // Where each may have 64 KiB of them, other than on ext4.
    let large = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = large.path().join("t");
    fs::create_dir(&tree).unwrap();
    let name = |index: usize| tree.join(format!("f{index:04}"));
    fs::write(name(0), "").unwrap();
    if !or_skip(has("python3"), "there is no python3")
        || !or_skip(
            runs::set_xattr(&name(0), "user.fork", &[0; 60_000]),
            "no tmpfs has large attributes here",
        )
    {
        return;
    }
    for index in 0..1500 {
        fs::write(name(index), text(index as u64, 10)).unwrap();
        assert!(runs::set_xattr(
            &name(index),
            "user.fork",
            &runs::noise(index as u64, 60_000)
        ));
    }
    let dir = temp();
    let (store, back, one) = (
        dir.path().join("r"),
        large.path().join("b"),
        dir.path().join("x.tar.zst"),
    );
    let within = |word: &str, args: Vec<std::ffi::OsString>| {
        let kib = peak(args.into_iter().chain(args!["--memory", "32M", "--quiet"]));
        assert!(kib <= (32 + 64) << 10, "{word}: {kib} KiB of 32 MiB and 64");
    };
    within(
        "backup",
        args!["backup", tree, "--to", store, "--workers", "2"].into(),
    );
    // With other times they are read again, and with none of that taken from the earlier backup.
    for index in 0..1500 {
        fs::File::options()
            .write(true)
            .open(name(index))
            .unwrap()
            .set_modified(std::time::UNIX_EPOCH)
            .unwrap();
    }
    within(
        "again",
        args!["backup", tree, "--to", store, "--workers", "2"].into(),
    );
    within(
        "once more",
        args!["backup", tree, "--to", store, "--workers", "2"].into(),
    );
    within(
        "export",
        args!["export", store, "--to", one, "--workers", "2"].into(),
    );
    within(
        "restore",
        args!["restore", store, "--to", back, "--workers", "2"].into(),
    );
    assert_same(&shape(&tree), &shape(&back), "restored");
}

#[test]
fn one_file_out_of_many_reads_little_of_the_backup() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("t");
    many(&tree);
    for target in ["r", "x.tar.zst", "x.tar.lz4"].map(|target| dir.path().join(target)) {
        fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
        let (trace, back) = (dir.path().join("trace"), dir.path().join("b"));
        let line = "strace -f -qq -e trace=read,pread64,readv,preadv,preadv2,mmap -o \"$1\" \"$2\" restore \"$3\" --to \"$4\" d05/f0777 --quiet";
        shell(line, args![trace, runs::FULLBORE, target, back]).ends_with(0);
        let trace = fs::read_to_string(trace).unwrap();
        let read = trace
            .lines()
            .filter(|line| line.contains("read"))
            .filter_map(|line| line.rsplit_once("= ")?.1.parse::<u64>().ok());
        let read: u64 = read.sum();
        assert!(read <= 3 << 20, "{target:?}: {read} bytes");
        assert_eq!(
            fs::read(back.join("d05/f0777")).unwrap(),
            fs::read(tree.join("d05/f0777")).unwrap()
        );
        fs::remove_dir_all(back).unwrap();
    }
}

#[test]
fn a_file_that_was_changed_here_and_there_again_and_again_is_written_a_stretch_at_once() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, store, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    runs::write(tree.join("f"), text(1, 16 << 20));
    for day in 0..6 {
        let file = fs::File::options()
            .write(true)
            .open(tree.join("f"))
            .unwrap();
        for block in (0..256u64).filter(|block| (block * 7 + day) % 11 == 0) {
            file.write_at(&text(1000 * day + block, 64 << 10), block << 16)
                .unwrap();
        }
        file.sync_all().unwrap();
        fullbore(args![
            "backup",
            tree,
            "--to",
            store,
            "--block-size",
            "64K",
            "--quiet"
        ])
        .ends_with(0);
    }
    let trace = dir.path().join("trace");
    let line = "strace -f -qq -e trace=pwrite64,pwritev,write -o \"$1\" \"$2\" restore \"$3\" --to \"$4\" --quiet";
    shell(line, args![trace, runs::FULLBORE, store, back]).ends_with(0);
    let writes = fs::read_to_string(trace)
        .unwrap()
        .lines()
        .filter(|line| line.contains("pwrite"))
        .count();
    // 16 MiB in frames of 1 MiB; the changed blocks are 117 of 256, hardly two of them neighbours.
    assert!(writes <= 32, "{writes}");
    assert_same(&shape(&tree), &shape(&back), "changed here and there");
}

#[test]
fn what_is_found_is_not_held() {
    if !or_skip(has("python3"), "there is no python3") {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, store) = (dir.path().join("t"), dir.path().join("r"));
    for sub in 0..80 {
        fs::create_dir_all(tree.join(format!("d{sub:02}"))).unwrap();
        (0..500).for_each(|i| {
            fs::write(
                tree.join(format!("d{sub:02}/a name of some length {i}")),
                "",
            )
            .unwrap()
        });
    }
    for _ in 0..2 {
        fullbore(args!["backup", tree, "--to", store, "--full", "--quiet"]).ends_with(0);
    }
    let [one, all] = ["d00", "a name of*"].map(|pattern| peak(args!["find", store, pattern]));
    assert_eq!(
        fullbore(args!["find", store, "a name of*"])
            .ends_with(0)
            .out
            .lines()
            .count(),
        40_000
    );
    assert!(
        all <= one + (12 << 10),
        "{one} KiB, and {all} KiB to find everything"
    );
}

/// A repository as a store that is not of this host has it, with a count of what is read.
fn counted_objects(repository: &Path) -> (Recording, Arc<dyn Objects>, u64) {
    let memory = MemoryObjects::new();
    let local = LocalObjects::new(repository);
    let mut bytes = 0;
    for object in local.list("").unwrap() {
        let mut content = Vec::new();
        let len = object.bytes as usize;
        local.read_at(&object.key, 0, len, &mut content).unwrap();
        bytes += content.len() as u64;
        memory.put(&object.key, &content, &PutIf::Always).unwrap();
    }
    let recording = Recording::new(Arc::new(memory));
    let objects = CoalescedObjects::new(Arc::new(recording.clone()));
    (recording, Arc::new(objects), bytes)
}

/// A part of a segment is read once, for its checksum and for its frames.
#[test]
fn a_verification_receives_little_more_than_is_stored() {
    let dir = temp();
    let tree = dir.path().join("tree");
    for number in 0..40 {
        let small = tree.join(format!("d/{number}"));
        runs::write(small, text(number, 300_000));
    }
    runs::write(tree.join("large"), runs::noise(1, 60_000_000));
    for codec in ["none", "zstd"] {
        let repository = dir.path().join(codec);
        let words = args![
            "backup",
            tree,
            "--to",
            repository,
            "--compress",
            codec,
            "-q"
        ];
        fullbore(words).ends_with(0);
        let (recording, objects, stored) = counted_objects(&repository);
        let verify = Verify {
            storages: Storages::default(),
            from: repository.into(),
            filter: BackupFilter::default(),
            data: true,
            against: None,
            shard: None,
            workers: NonZeroUsize::new(3).unwrap(),
        };
        let verdict = verify.run_all(&objects, &Meter::default()).unwrap();
        assert_eq!(verdict.exit_code(), 0);
        let read =
            [Operation::ReadAt, Operation::Get].map(|operation| recording.count(operation).bytes);
        let read: u64 = read.iter().sum();
        assert!(
            read * 10 <= stored * 11 && read * 10 >= stored * 9,
            "{codec}: {read} of {stored}"
        );
    }
}
