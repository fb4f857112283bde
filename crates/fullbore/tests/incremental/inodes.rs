//! Files that moved, were renamed, or have the inode of another one.

use super::*;

#[test]
fn a_file_touched_or_copied_over_itself_is_read_and_kept() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..30).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 3000)));
    backup(&tree, &repo, &[]);
    (0..30).for_each(|i| {
        set_mtime(
            &tree.join(format!("f{i}")),
            1_700_000_000 + i64::from(i as u32),
            5,
        )
    });
    set_mode(&tree.join("f7"), 0o640);
    let result = backup(&tree, &repo, &[]);
    assert_eq!(root(&repo, &ids(&repo)[1])["totals"]["kept"], 30);
    assert!(
        result["stored_bytes"].as_u64().unwrap() < 10_000,
        "{result}"
    );
    assert_same(&shape(&tree), &restored(&repo, "latest"), "touched");
}

#[test]
fn what_moved_is_found_by_its_inode() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("a/one"), noise(1, 300_000));
    write(tree.join("a/two"), noise(2, 3 << 20));
    write(tree.join("b/three"), noise(3, 200_000));
    write(tree.join("b/five"), noise(5, 3 << 20));
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    fs::rename(tree.join("a"), tree.join("z")).unwrap();
    fs::rename(tree.join("b/three"), tree.join("b/four")).unwrap();
    fs::rename(tree.join("b/five"), tree.join("b/six")).unwrap();
    let result = backup(&tree, &repo, &[]);
    assert!(
        result["stored_bytes"].as_u64().unwrap() < 10_000,
        "{result}"
    );
    let root = root(&repo, &ids(&repo)[1]);
    assert_eq!(root["totals"]["kept"], 4, "{root}");
    assert_same(&shape(&tree), &restored(&repo, "latest"), "moved");
    verified(&repo, "latest");
}

#[test]
fn new_files_in_the_inodes_of_removed_ones_are_read() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    // On ext4 the inodes of removed files are given out again, here in another order.
    let each = |name: &str| {
        (0..24)
            .map(|i| tree.join(format!("{name}/f{i:02}")))
            .enumerate()
            .collect::<Vec<_>>()
    };
    let time = |path: &Path| set_mtime(path, 1_600_000_000, 123_456_789);
    for (i, path) in each("old") {
        write(
            path.clone(),
            noise(i as u64, if i % 2 == 0 { 40_000 } else { 1_200_000 }),
        );
        time(&path);
    }
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    fs::remove_dir_all(tree.join("old")).unwrap();
    for (i, path) in each("new").into_iter().rev() {
        write(
            path.clone(),
            noise(100 + i as u64, if i % 2 == 0 { 40_000 } else { 1_200_000 }),
        );
        time(&path);
    }
    backup(&tree, &repo, &[]);
    assert_same(&shape(&tree), &restored(&repo, "latest"), "made anew");
}

#[test]
fn another_file_with_a_known_inode_time_and_size_is_read() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("old"), noise(1, 50_000));
    set_mtime(&tree.join("old"), 1_600_000_000, 0);
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    // What an unpacked archive of the same day would look like, in the inode of the one before.
    fs::rename(tree.join("old"), tree.join("new")).unwrap();
    write(tree.join("new"), noise(2, 50_000));
    set_mtime(&tree.join("new"), 1_600_000_000, 0);
    backup(&tree, &repo, &[]);
    assert_same(&shape(&tree), &restored(&repo, "latest"), "replaced");
}

#[test]
fn a_file_that_was_written_to_and_renamed_is_read_whatever_its_time() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("container"), noise(1, 3 << 20));
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    // As programs do that keep the time of a container.
    let file = File::options()
        .write(true)
        .open(tree.join("container"))
        .unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"new", 1 << 20).unwrap();
    file.set_modified(time).unwrap();
    fs::rename(tree.join("container"), tree.join("vault")).unwrap();
    backup(&tree, &repo, &[]);
    assert_same(
        &shape(&tree),
        &restored(&repo, "latest"),
        "written to and renamed",
    );
}

#[test]
fn a_change_within_the_clocks_granularity_is_seen() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("file"), noise(0, 5000));
    for i in 1..6 {
        backup(&tree, &repo, &[]);
        // The same size and time: only the ctime could tell, and it may not have ticked.
        let times = fs::metadata(tree.join("file")).unwrap().modified().unwrap();
        write(tree.join("file"), noise(i, 5000));
        File::options()
            .write(true)
            .open(tree.join("file"))
            .unwrap()
            .set_modified(times)
            .unwrap();
    }
    backup(&tree, &repo, &[]);
    assert_same(&shape(&tree), &restored(&repo, "latest"), "rewritten");
}
