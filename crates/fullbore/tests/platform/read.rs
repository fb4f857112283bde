//! Reading, advice, and maps of sparse files.

use super::places;
use fullbore_format::entry::ByteRun;
use fullbore_platform::{
    dir::stat_fd,
    read::{MAX_RUNS, PageCacheUse, data_map, drop_behind, pread, read_full, sequential},
    write::fsync,
};
use std::{fs::File, os::unix::fs::FileExt, path::Path, process::Command};
use tempfile::TempDir;

const BLOCK: u64 = 64 << 10;

fn file(dir: &TempDir) -> File {
    File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(dir.path().join("f"))
        .unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8).collect()
}

#[test]
fn what_is_read_is_what_is_there_with_every_cache_and_trick() {
    for (dir, _root) in places() {
        let (file, bytes) = (file(&dir), pattern(300_000));
        file.write_all_at(&bytes, 0).unwrap();
        for cache in [PageCacheUse::Keep, PageCacheUse::Drop] {
            let mut all = b"before".to_vec();
            assert_eq!(
                read_full(&file, &mut all, 10, 200_000, cache).unwrap(),
                200_000
            );
            assert!(all[..6] == *b"before" && all[6..] == bytes[10..200_010]);
            let mut some = [0; 1000];
            assert_eq!(pread(&file, &mut some, 299_500, cache).unwrap(), 500);
            assert_eq!(some[..500], bytes[299_500..]);
        }
    }
}

#[test]
fn reading_past_the_end_gives_less_and_is_no_error() {
    for (dir, _root) in places() {
        let file = file(&dir);
        file.write_all_at(b"short", 0).unwrap();
        for cache in [PageCacheUse::Keep, PageCacheUse::Drop] {
            let mut buffer = Vec::new();
            assert_eq!(read_full(&file, &mut buffer, 2, 100, cache).unwrap(), 3);
            assert_eq!(read_full(&file, &mut buffer, 500, 100, cache).unwrap(), 0);
            assert_eq!(read_full(&file, &mut buffer, 0, 0, cache).unwrap(), 0);
            assert_eq!(buffer, b"ort");
        }
    }
}

/// Bytes of a file that are in memory; `None` without util-linux.
fn cached_bytes(path: &Path) -> Option<u64> {
    let fincore = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .arg(path)
        .output();
    String::from_utf8(fincore.ok()?.stdout)
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[test]
fn pages_that_were_dropped_are_not_in_memory() {
    let (dir, _root) = places().remove(0);
    let file = file(&dir);
    file.write_all_at(&pattern(1 << 20), 0).unwrap();
    fsync(&file).unwrap();
    let cached = || cached_bytes(&dir.path().join("f"));
    let Some(before) = cached() else { return };
    assert_eq!(before, 1 << 20);
    drop_behind(&file, 0, 1 << 20);
    assert_eq!(cached(), Some(0));
    sequential(&file);
    read_full(&file, &mut Vec::new(), 0, 1 << 20, PageCacheUse::Drop).unwrap();
    assert!(cached().unwrap() < 1 << 19);
    read_full(&file, &mut Vec::new(), 0, 1 << 20, PageCacheUse::Keep).unwrap();
    assert_eq!(cached(), Some(1 << 20));
}

#[test]
fn the_map_of_a_sparse_file_is_where_its_data_is() {
    for (dir, _root) in places() {
        let file = file(&dir);
        for position in [2, 3, 7] {
            file.write_all_at(&[1; BLOCK as usize], position * BLOCK)
                .unwrap();
        }
        file.set_len(10 * BLOCK).unwrap();
        let expected = [
            ByteRun {
                offset: 2 * BLOCK,
                len: 2 * BLOCK,
            },
            ByteRun {
                offset: 7 * BLOCK,
                len: BLOCK,
            },
        ];
        assert_eq!(data_map(&file, 10 * BLOCK).unwrap().unwrap(), expected);
        assert!(stat_fd(&file).unwrap().looks_sparse());
    }
}

#[test]
fn a_file_without_holes_has_no_map_and_one_without_data_an_empty_one() {
    for (dir, _root) in places() {
        let full = file(&dir);
        full.write_all_at(&[1; 5000], 0).unwrap();
        assert_eq!(data_map(&full, 5000).unwrap(), None);
        assert_eq!(data_map(&full, 0).unwrap(), None);
        let hollow = file(&dir);
        hollow.set_len(1 << 40).unwrap();
        assert_eq!(data_map(&hollow, 1 << 40).unwrap(), Some(vec![]));
    }
    assert_eq!(
        data_map(File::open("/proc/self/status").unwrap(), 100).unwrap(),
        None
    );
}

#[test]
fn the_map_of_a_file_that_changed_since_stays_within_the_size_that_was_asked_for() {
    for (dir, _root) in places() {
        let file = file(&dir);
        file.write_all_at(&[1; BLOCK as usize], 0).unwrap();
        file.write_all_at(&[1; BLOCK as usize], 4 * BLOCK).unwrap();
        // Shorter than it was when it was scanned, and longer.
        assert_eq!(data_map(&file, 9 * BLOCK).unwrap().unwrap().len(), 2);
        let cut = data_map(&file, 4 * BLOCK + 5).unwrap().unwrap();
        assert_eq!(
            cut,
            [
                ByteRun {
                    offset: 0,
                    len: BLOCK
                },
                ByteRun {
                    offset: 4 * BLOCK,
                    len: 5
                }
            ]
        );
        assert_eq!(data_map(&file, BLOCK).unwrap(), None);
    }
}

#[test]
fn a_file_of_more_holes_than_we_want_to_know_has_only_so_many_runs() {
    let (dir, _root) = places().remove(1);
    let (file, holes) = (file(&dir), MAX_RUNS as u64 + 2000);
    for i in 0..holes {
        file.write_all_at(b"x", i * 8192 + 4096).unwrap();
    }
    let map = data_map(&file, holes * 8192).unwrap().unwrap();
    assert!(
        map.len() <= MAX_RUNS && map.len() >= MAX_RUNS / 2,
        "{}",
        map.len()
    );
    // Whatever was joined, all data is still in the map.
    let within = |offset: u64| {
        map[..map.partition_point(|run| run.offset <= offset)]
            .last()
            .is_some_and(|run| offset < run.offset + run.len)
    };
    assert!((0..holes).all(|i| within(i * 8192 + 4096)));
}
