//! An archive that comes as a stream: it says of itself what should be in it.

use crate::runs;
use crate::runs::{Ran, command, fed, fullbore, shell, temp};
use fullbore_format::{segment::Service, segment_reader::segment_in_memory};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    fs,
    io::{Read, Write},
    ops::Range,
    os::{fd::AsFd, unix::net::UnixListener},
    path::Path,
    process::Stdio,
    time::Duration,
};
use tempfile::tempdir;

const CODECS: [&str; 2] = ["zst", "lz4"];

/// Files of some frames of 64 KiB, one of them larger than a frame.
fn tree(dir: &Path) {
    for i in 0..60u32 {
        let name = dir.join(format!("d{}/f{i:02}", i / 10));
        fs::create_dir_all(name.parent().unwrap()).unwrap();
        fs::write(name, noise(i, 3000 + i as usize * 100)).unwrap();
    }
    fs::write(dir.join("d3/large"), noise(99, 300_000)).unwrap();
    fs::hard_link(dir.join("d3/large"), dir.join("d4/linked")).unwrap();
    fs::write(dir.join("d4/empty"), "").unwrap();
    drop(UnixListener::bind(dir.join("d4/socket")).unwrap());
}

fn noise(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 77) >> 13) as u8)
        .collect()
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn archive(dir: &Path, suffix: &str) -> Vec<u8> {
    let target = dir.join(format!("a.tar.{suffix}"));
    fullbore(args![
        "backup",
        dir.join("tree"),
        "--to",
        target,
        "--frame-size",
        "64K",
        "--quiet"
    ])
    .ends_with(0);
    fs::read(target).unwrap()
}

/// Where the frames are that the seek table knows, and their plain bytes; and what is behind them.
fn frames(archive: &[u8]) -> (Vec<(Range<usize>, u32)>, Range<usize>) {
    let found = segment_in_memory(archive).frames().unwrap().unwrap();
    let frames: Vec<_> = found
        .into_iter()
        .map(|(offset, stored, plain)| (offset as usize..offset as usize + stored as usize, plain))
        .collect();
    let table = frames.last().map_or(0, |(range, _)| range.end);
    (frames, table..archive.len())
}

fn without(archive: &[u8], range: &Range<usize>) -> Vec<u8> {
    [&archive[..range.start], &archive[range.end..]].concat()
}

fn run(what: &[&str], input: &[u8]) -> Ran {
    fed(what.iter().map(Into::into), input).into()
}

fn restored(input: &[u8], to: &Path, more: &[&str]) -> Ran {
    run(
        &[&["restore", "-", "--to", to.to_str().unwrap()], more].concat(),
        input,
    )
}

fn same(a: &Path, b: &Path) -> bool {
    std::process::Command::new("diff")
        .args(["-r", "--no-dereference", "-x", "socket"])
        .args([a, b])
        .status()
        .unwrap()
        .success()
}

#[test]
fn what_it_has_comes_out_and_is_compared() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    for suffix in CODECS {
        let (stored, file) = (
            archive(dir.path(), suffix),
            dir.path().join(format!("a.tar.{suffix}")),
        );
        let id = fullbore(args!["show", file, "--json"]).ends_with(0).json()[0]["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let target = dir.path().join(suffix);
        let ran = restored(&stored, &target, &["--json"]).ends_with(0);
        let result = ran.json().pop().unwrap();
        assert_eq!(
            (result["id"].as_str(), result["stored_bytes"].as_u64()),
            (Some(&*id), Some(stored.len() as u64))
        );
        assert!(same(&dir.path().join("tree"), &target), "{suffix}");
        let part = restored(
            &stored,
            &dir.path().join(format!("{suffix}.part")),
            &["d2", "d3/large"],
        )
        .ends_with(0);
        assert!(part.err.contains("every digest matched"), "{}", part.err);
        for word in [&["list"][..], &["list", "--json"], &["show", "--json"]] {
            let args_of = |source: &'static str| [word, &[source]].concat();
            let expected = shell(
                &format!("$1 {} $2", word.join(" ")),
                args![runs::FULLBORE, file],
            )
            .ends_with(0)
            .out;
            assert_eq!(
                run(&args_of("-"), &stored).ends_with(0).out,
                expected,
                "{suffix}, {word:?}"
            );
        }
        let ran = run(&["verify", "-"], &stored).ends_with(0);
        assert!(
            ran.err
                .contains(&format!("backup {id} is sound: every byte of")),
            "{}",
            ran.err
        );
    }
}

#[test]
fn a_frame_that_is_not_there_is_missed() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    for suffix in CODECS {
        let stored = archive(dir.path(), suffix);
        let (frames, _) = frames(&stored);
        assert!(frames.len() > 8, "{frames:?}");
        let (mut silent, mut named) = (0, 0);
        for (number, (range, plain)) in frames.iter().enumerate() {
            let service = Service::parse(&stored[range.clone()]).map(|(service, _)| service);
            if *plain == 0 && matches!(service, None | Some(Service::Locator)) {
                continue; // the empty frame; what says where the root is
            }
            if service == Some(Service::Label) {
                continue; // then nothing is known of it
            }
            let cut = without(&stored, range);
            run(&["verify", "-"], &cut).ends_with(4);
            let target = dir.path().join(format!("{suffix}{number}"));
            let ran = restored(&cut, &target, &["--keep-going"]).ends_with(4);
            let lost = (0..60).filter(|i| !target.join(format!("d{}/f{i:02}", i / 10)).exists());
            let lost: Vec<_> = lost
                .map(|i| format!("\"d{}/f{i:02}\" is damaged: it is missing", i / 10))
                .collect();
            silent += lost
                .iter()
                .filter(|file| !ran.err.contains(&**file))
                .count();
            named += lost.len();
        }
        // Of what stands behind damage in the tar itself nothing is known.
        assert!(
            named > 60 && silent < named,
            "{suffix}: {silent} of {named}"
        );
    }
}

#[test]
fn whole_members_that_are_missing_are_named_and_the_rest_is_there() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    let stored = archive(dir.path(), "zst");
    let (frames, _) = frames(&stored);
    let (range, _) = frames
        .iter()
        .filter(|(_, plain)| *plain > 0)
        .nth(1)
        .unwrap();
    let target = dir.path().join("to");
    let cut = without(&stored, range);
    let ran = restored(&cut, &target, &["--keep-going"]).ends_with(4);
    let lost: Vec<_> = (0..60)
        .filter(|i| !target.join(format!("d{}/f{i:02}", i / 10)).exists())
        .collect();
    assert!(!lost.is_empty() && lost.len() < 30, "{lost:?}");
    for i in lost {
        let named = format!(
            "\"d{}/f{i:02}\" is damaged: it is missing in the stream",
            i / 10
        );
        assert!(ran.err.contains(&named), "{named} is not in {}", ran.err);
    }
    assert!(target.join("d5/f59").exists() && target.join("d3/large").exists());
    let ran = run(&["verify", "-"], &cut).ends_with(4);
    assert!(
        ran.out.contains("lost: ") && ran.out.contains("is missing in the stream"),
        "{}",
        ran.out
    );
}

#[test]
fn content_that_is_another_is_not_restored() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    let stored = archive(dir.path(), "zst");
    let (frames, _) = frames(&stored);
    // Another frame with a right checksum of its own.
    let (range, plain) = frames
        .iter()
        .filter(|(_, plain)| *plain > 0)
        .nth(1)
        .unwrap();
    let mut data = zstd_safe_decompress(&stored[range.clone()], *plain as usize);
    let index = data
        .windows(30)
        .position(|bytes| bytes == &noise(25, 30)[..])
        .unwrap_or_else(|| {
            (0..60)
                .find_map(|i| {
                    data.windows(30)
                        .position(|bytes| bytes == &noise(i, 30)[..])
                })
                .unwrap()
        });
    data[index + 7] ^= 1;
    let mut frame = Vec::new();
    fullbore_pipeline::stage::codec::Codec::Zstd(1)
        .compressor()
        .unwrap()
        .compress(&data, &mut frame)
        .unwrap();
    let changed = [&stored[..range.start], &frame, &stored[range.end..]].concat();
    let target = dir.path().join("to");
    let ran = restored(&changed, &target, &[])
        .ends_with(4)
        .has_one_error("its digest is");
    drop(ran);
    let target = dir.path().join("again");
    let ran = restored(&changed, &target, &["--keep-going"]).ends_with(4);
    let lost: Vec<_> = (0..60)
        .filter(|i| !target.join(format!("d{}/f{i:02}", i / 10)).exists())
        .collect();
    let [lost] = lost[..] else { panic!("{lost:?}") };
    assert!(
        ran.err.contains(&format!(
            "\"d{}/f{lost:02}\" is damaged: its digest is",
            lost / 10
        )),
        "{}",
        ran.err
    );
    run(&["verify", "-"], &changed).ends_with(4);
}

fn zstd_safe_decompress(frame: &[u8], len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    zstd_safe::decompress(&mut out, frame).unwrap();
    out
}

#[test]
fn what_was_not_captured_is_said() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    let list = dir.path().join("list");
    fs::write(&list, "d1\nnowhere\n").unwrap();
    let target = dir.path().join("a.tar.zst");
    fullbore(args![
        "backup",
        dir.path().join("tree"),
        "--to",
        target,
        "--files-from",
        list
    ])
    .ends_with(3);
    let ran = restored(&fs::read(&target).unwrap(), &dir.path().join("to"), &[]).ends_with(3);
    assert!(
        ran.err
            .contains("\"nowhere\": no file or directory has this name"),
        "{}",
        ran.err
    );
}

#[test]
fn streams_may_stand_one_behind_the_other() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    for suffix in CODECS {
        let one = archive(dir.path(), suffix);
        fs::write(dir.path().join("tree/d5/f59"), "new").unwrap();
        let two = archive(dir.path(), suffix);
        let target = dir.path().join(suffix);
        restored(&[&one[..], &two].concat(), &target, &[]).ends_with(0);
        assert!(same(&dir.path().join("tree"), &target), "{suffix}");
        let (frames, _) = frames(&one);
        let page = |range: &Range<usize>| {
            matches!(
                Service::parse(&one[range.clone()]),
                Some((Service::Page, _))
            )
        };
        let (page, _) = frames.iter().find(|(range, _)| page(range)).unwrap();
        run(&["verify", "-"], &[&without(&one, page)[..], &two].concat()).ends_with(4);
        fs::write(dir.path().join("tree/d5/f59"), "old").unwrap();
    }
}

#[test]
fn segments_of_a_repository_are_compared_too() {
    let dir = tempdir().unwrap();
    let (source, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    tree(&source);
    (0..5)
        .for_each(|i| fs::write(source.join(format!("d1/random{i}")), random(i, 700_000)).unwrap());
    let backup = || {
        drop(
            fullbore(args![
                "backup",
                source,
                "--to",
                repo,
                "--segment-size",
                "1M",
                "--frame-size",
                "64K"
            ])
            .ends_with(0),
        )
    };
    backup();
    let segments = || {
        let mut paths: Vec<_> = walk(&repo.join("backups"))
            .into_iter()
            .filter(|path| path.to_str().unwrap().ends_with("tar.zst"))
            .collect();
        paths.sort();
        paths
            .iter()
            .map(|path| fs::read(path).unwrap())
            .collect::<Vec<_>>()
    };
    let first = segments();
    assert!(first.len() > 2);
    let target = dir.path().join("to");
    restored(&first.concat(), &target, &[]).ends_with(0);
    assert!(same(&source, &target));
    fs::write(source.join("d0/f00"), "changed").unwrap();
    backup();
    // The second holds what is new, and describes what the first one holds.
    let second = segments().pop().unwrap();
    restored(&second, &dir.path().join("second"), &[]).ends_with(0);
    assert_eq!(
        fs::read(dir.path().join("second/d0/f00")).unwrap(),
        b"changed"
    );
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                walk(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

#[test]
fn any_tar_can_be_looked_into() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    let tar = dir.path().join("x.tar");
    assert!(
        std::process::Command::new("tar")
            .arg("-C")
            .arg(dir.path().join("tree"))
            .arg("-cf")
            .arg(&tar)
            .arg("d3")
            .status()
            .unwrap()
            .success()
    );
    let listed = fullbore(args!["list", tar, "--json"]).ends_with(0).json();
    assert_eq!(listed.len(), 12);
    assert!(
        listed
            .iter()
            .any(|line| line["path"] == "d3/large" && line["size"] == 300_000)
    );
    let part = fullbore(args!["list", tar, "d3/f31"]).ends_with(0);
    assert_eq!(part.out.lines().count(), 1);
    fullbore(args!["list", tar, "nowhere"])
        .ends_with(1)
        .has_one_error("could not find \"nowhere\"");
    let ran = fullbore(args!["verify", tar]).ends_with(0);
    assert!(
        ran.err.contains("nothing says what should be in it"),
        "{}",
        ran.err
    );
    fullbore(args!["show", tar])
        .ends_with(1)
        .has_one_error("a tar without metadata of fullbore");
    let whole = fs::read(&tar).unwrap();
    run(&["verify", "-"], &whole[..whole.len() / 2]).ends_with(4);
}

#[test]
fn what_came_out_before_damage_is_right() {
    let dir = tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    (0..40).for_each(|i| fs::write(tree.join(format!("f{i:02}")), noise(i, 40_000)).unwrap());
    for suffix in ["zst", "lz4"] {
        let stored = archive(dir.path(), suffix);
        let mut given = 0;
        for (round, offset) in (1..12).map(|round| (round, stored.len() * round / 12)) {
            let mut damaged = stored.clone();
            damaged[offset] ^= 4;
            let target = dir.path().join(format!("{suffix}{round}"));
            let ran = restored(&damaged, &target, &["--keep-going"]);
            let mut right = 0;
            for (i, there) in
                (0..40).filter_map(|i| Some((i, fs::read(target.join(format!("f{i:02}"))).ok()?)))
            {
                assert_eq!(there, noise(i, 40_000), "{suffix} {offset} {i}");
                right += 1;
            }
            // A service frame may have met the damage: a stream is restored without it.
            let is_told = ran.code == 4 || (ran.code == 0 && right == 40);
            assert!(is_told, "{suffix} {offset}: {} {}", ran.code, ran.err);
            given += right;
        }
        assert!(given > 40, "{suffix}: {given}");
    }
}

#[test]
fn a_stream_that_lost_its_beginning_is_no_tar_without_members() {
    let dir = tempdir().unwrap();
    tree(&dir.path().join("tree"));
    let whole = archive(dir.path(), "gz");
    let lost = [&[0; 4096], &whole[4096..]].concat();
    for (stream, words) in [
        (&lost, "the checksum of a header"),
        (&vec![0; 50_000], "only zeros"),
    ] {
        let ran = run(&["verify", "-"], stream).ends_with(4);
        assert!(
            ran.out.contains(words) || ran.err.contains(words),
            "{} {}",
            ran.out,
            ran.err
        );
        restored(stream, &dir.path().join("to"), &["--overwrite=all"]).ends_with(4);
    }
    shell("tar -C \"$1\" -cf \"$1/x.tar\" tree/d0", args![dir.path()]).ends_with(0);
    let trailed = [&fs::read(dir.path().join("x.tar")).unwrap()[..], &[7; 3000]].concat();
    let ran = run(&["verify", "-"], &trailed).ends_with(0);
    assert!(
        ran.err.contains("what comes after its end is none of it"),
        "{}",
        ran.err
    );
}

/// One end of a pipe as some programs leave it to those that they start.
fn never_waits(end: impl AsFd) {
    fcntl_setfl(&end, fcntl_getfl(&end).unwrap() | OFlags::NONBLOCK).unwrap();
}

#[test]
fn pipes_that_do_not_wait_are_waited_for() {
    let dir = temp();
    let (tree, back) = (dir.path().join("t"), dir.path().join("back"));
    runs::sample(&tree);
    runs::write(tree.join("large"), runs::noise(1, 3 << 20));
    let (mut source, target) = std::io::pipe().unwrap();
    never_waits(&target);
    let mut backup = command(args!["backup", tree, "--to", "-", "--quiet"])
        .stdout(target)
        .spawn()
        .unwrap();
    let mut archive = Vec::new();
    std::thread::sleep(Duration::from_millis(200)); // the pipe is full by now
    source.read_to_end(&mut archive).unwrap();
    assert!(backup.wait().unwrap().success());
    for args in [
        &args!["restore", "-", "--to", back, "--quiet"][..],
        &args!["list", "-"],
    ] {
        let (source, mut target) = std::io::pipe().unwrap();
        never_waits(&source);
        let mut run = command(args.to_vec())
            .stdin(source)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        for part in archive.chunks(archive.len() / 3) {
            std::thread::sleep(Duration::from_millis(100)); // the pipe is empty by now
            target.write_all(part).unwrap();
        }
        drop(target);
        assert!(run.wait().unwrap().success());
    }
    runs::assert_same(&runs::shape(&tree), &runs::shape(&back), "restored");
}

#[test]
fn a_segment_that_is_missing_between_others_is_missed() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    fs::create_dir(&tree).unwrap();
    (0..4).for_each(|i| fs::write(tree.join(format!("f{i}")), random(i, 1_500_000)).unwrap());
    fullbore(args!["backup", tree, "--to", repo, "--segment-size", "1M"]).ends_with(0);
    for (order, code) in [("1 2 3 4", 0), ("1 3 4", 4), ("2 1 3 4", 4), ("1 2", 0)] {
        let verify =
            "for n in $2; do cat \"$1\"/backups/*/s01-00000\"$n\"*; done | \"$3\" verify -";
        let ran = shell(verify, args![repo, order, env!("CARGO_BIN_EXE_fullbore")]);
        assert_eq!(ran.code, code, "{order}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn a_file_that_is_called_like_standard_input_is_not_taken_for_it() {
    let dir = temp();
    fs::create_dir(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a/f"), "A").unwrap();
    let run = |line: &str| {
        let line = format!("cd \"$1\" && {line}");
        shell(
            &line.replace("fullbore", env!("CARGO_BIN_EXE_fullbore")),
            args![dir.path()],
        )
    };
    assert_eq!(
        run("fullbore backup a --to ./- -q && fullbore backup a --to b.tar.zst -q").code,
        0
    );
    let wanted = run("fullbore verify - < b.tar.zst").out;
    assert!(!wanted.contains("in \"-\""), "{wanted}");
    for (line, code) in [
        ("fullbore restore - --to t --delta --delete < b.tar.zst", 2),
        ("fullbore export - --to e.tar < b.tar.zst", 2),
        ("fullbore list - < /dev/null", 1),
        ("fullbore verify - < /dev/null", 1),
        ("fullbore verify ./-", 0),
    ] {
        let ran = run(line);
        assert!(
            ran.code == code || (code == 1 && ran.code == 4),
            "{line}: {:?} {}{}",
            ran.code,
            ran.out,
            ran.err
        );
    }
}
