//! Only the blocks that differ are written, and in place.

use super::*;

#[test]
fn only_the_blocks_that_differ_are_written_and_in_place() {
    let place = Place::new("zstd:1");
    let path = place.at("to/big/odd");
    let inode = fs::metadata(&path).unwrap().ino();
    overwrite_at(&path, (1 << 20) + 5, b"other");
    overwrite_at(&path, (5 << 20) + 70, b"end");
    let changes = place.delta(&[]);
    assert_eq!(changes["written_bytes"], (1 << 20) + 77);
    assert_eq!(
        (&changes["changed"], fs::metadata(&path).unwrap().ino()),
        (&1.into(), inode)
    );
    place.assert_restored("two blocks");
}

/// What is there at some places of two images of a terabyte.
#[test]
fn of_a_file_over_pages_without_digests_of_blocks_nothing_is_written_if_it_is_the_same() {
    let place = Place { dir: temp() };
    write(place.at("tree/a"), noise(1, 3_000_000));
    write(place.at("tree/b"), noise(2, 100_000));
    let more = ["--digest", "crc32c", "--checkpoint-interval", "0", "-q"].map(OsString::from);
    let backup = args!["backup", place.at("tree"), "--to", place.at("repo")];
    fullbore(backup.into_iter().chain(more)).ends_with(0);
    fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "-q"
    ])
    .ends_with(0);
    let changes = place.delta(&[]);
    assert_eq!(
        (
            &changes["changed"],
            &changes["same"],
            &changes["written_bytes"]
        ),
        (&0.into(), &2.into(), &0.into())
    );
    for (index, len) in [
        (2_900_000, 3_000_000),
        (10, 3_000_000),
        (10, 2_000_000),
        (10, 3_500_000),
    ] {
        overwrite_at(&place.at("to/a"), index.min(len - 10), b"other");
        fs::File::options()
            .write(true)
            .open(place.at("to/a"))
            .unwrap()
            .set_len(len as u64)
            .unwrap();
        let changes = place.delta(&[]);
        assert_eq!(
            (&changes["changed"], &changes["same"]),
            (&1.into(), &1.into()),
            "{index} {len}"
        );
        place.assert_restored(&format!("{index} {len}"));
    }
}

fn assert_same_image(a: &Path, b: &Path, case: &str) {
    let [a, b] = [a, b].map(|path| fs::File::open(path).unwrap());
    assert_eq!(
        a.metadata().unwrap().len(),
        b.metadata().unwrap().len(),
        "{case}"
    );
    for (offset, len) in [
        (0, 10 << 20),
        (1 << 30, 1 << 20),
        ((1 << 39) - 4096, 7 << 20),
    ] {
        let [a, b] = [&a, &b].map(|file| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset).unwrap();
            bytes
        });
        assert!(a == b, "{case}: at {offset}");
    }
}

#[test]
fn of_a_sparse_image_only_what_differs_is_written_and_in_place() {
    for no_tricks in [&[][..], &["--no-tricks"]] {
        let place = Place { dir: temp() };
        let (image, copy) = (place.at("tree/image"), place.at("to/image"));
        write(&image, b"");
        let open = |path: &Path| fs::File::options().write(true).open(path).unwrap();
        let file = open(&image);
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&noise(1, 6 << 20), 1 << 20).unwrap();
        file.write_all_at(&noise(2, 6 << 20), 1 << 39).unwrap();
        let back_up = || {
            fullbore(args![
                "backup",
                place.at("tree"),
                "--to",
                place.at("repo"),
                "-q"
            ])
            .ends_with(0)
        };
        back_up();
        fullbore(args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            "-q"
        ])
        .ends_with(0);
        let inode = fs::metadata(&copy).unwrap().ino();
        // The image goes on: holes come and go. The copy had a life of its own.
        fallocate(
            &file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            2 << 20,
            8192,
        )
        .unwrap();
        file.write_all_at(&noise(3, 12_288), 1 << 30).unwrap();
        back_up();
        let there = open(&copy);
        there.write_all_at(b"not there", 500_000).unwrap();
        there.write_all_at(b"another", (1 << 39) + 777).unwrap();
        there.set_len((1 << 40) + 5).unwrap();
        let changes = place.delta(no_tricks);
        let written = changes["written_bytes"].as_u64().unwrap();
        // A block with what was changed in the copy, and one with what is new.
        assert!((1..=2 << 20).contains(&written), "{changes}");
        let after = fs::metadata(&copy).unwrap();
        assert_eq!(after.ino(), inode);
        assert!(after.blocks() < 30_000, "{}", after.blocks());
        assert_same_image(&image, &copy, "after");
        let changes = place.delta(no_tricks);
        assert_eq!(
            (&changes["changed"], &changes["written_bytes"]),
            (&0.into(), &0.into())
        );
        open(&copy)
            .write_all_at(b"a little", (1 << 39) + (3 << 20))
            .unwrap();
        open(&copy)
            .write_all_at(&noise(9, 5 << 20), 1 << 35)
            .unwrap();
        let changes = place.delta(no_tricks);
        let written = changes["written_bytes"].as_u64().unwrap();
        assert!((1..=1 << 20).contains(&written), "{changes}");
        assert_same_image(&image, &copy, "one block, and a hole");
        assert!(fs::metadata(&copy).unwrap().blocks() < 30_000);
        fullbore(args![
            "verify",
            place.at("repo"),
            "--against",
            place.at("to")
        ])
        .ends_with(0);
    }
}

#[test]
fn of_a_file_in_chunks_only_what_differs_is_written_and_in_place() {
    let place = Place { dir: temp() };
    let (file, copy) = (place.at("tree/file"), place.at("to/file"));
    let mut content = noise(1, 6 << 20);
    for _ in 0..2 {
        write(&file, &content);
        fullbore(args![
            "backup",
            place.at("tree"),
            "--to",
            place.at("repo"),
            "-q",
            "--chunking",
            "content"
        ])
        .ends_with(0);
        content.splice(100_000..100_000, *b"moves the rest");
    }
    fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "-q"
    ])
    .ends_with(0);
    let inode = fs::metadata(&copy).unwrap().ino();
    for index in [5, 3 << 20, (6 << 20) + 3] {
        overwrite_at(&copy, index, b"other");
    }
    let changes = place.delta(&[]);
    let written = changes["written_bytes"].as_u64().unwrap();
    assert!((1..=2 << 20 | 100).contains(&written), "{changes}");
    assert_eq!(fs::metadata(&copy).unwrap().ino(), inode);
    place.assert_restored("in chunks");
}
