//! What a restore will cost is told before it is begun.

use crate::runs;
use crate::runs::{fullbore, names, noise, temp, text};
use std::{fs, os::unix::fs::FileExt, path::Path};

#[test]
fn a_plan_counts_what_the_restore_then_fetches_and_writes_nothing() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    for i in 0..200 {
        runs::write(tree.join(format!("d/{i:03}")), text(i, 3000));
    }
    runs::write(tree.join("large"), noise(1, 3_000_000));
    fs::hard_link(tree.join("large"), tree.join("other name")).unwrap();
    fullbore(args![
        "backup",
        tree,
        "--to",
        repository,
        "--quiet",
        "--segment-size",
        "1M"
    ])
    .ends_with(0);
    for round in 0..2 {
        compare(&repository, &target);
        let file = fs::File::options()
            .write(true)
            .open(tree.join("large"))
            .unwrap();
        file.write_all_at(b"changed", 1_500_000).unwrap();
        runs::write(tree.join("d/017"), text(1000, 3000));
        if round == 0 {
            fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        }
    }
    let one = fullbore(args!["restore", repository, "--plan", "d/017"])
        .ends_with(0)
        .out;
    assert!(one.contains("\nwanted        1 file, 3.00 kB\n"), "{one}");
    assert!(
        one.contains(" in 1 frame, from 1 segment of 1 backup\n"),
        "{one}"
    );
    assert!(one.contains("\nwrite         not measured\n"), "{one}");
    let large = fullbore(args!["restore", repository, "--plan", "large"])
        .ends_with(0)
        .out;
    assert!(large.contains(" of 2 backups\n"), "{large}");
    fullbore(args!["restore", repository, "--plan", "nowhere"])
        .ends_with(1)
        .has_one_error("could not find");
    fullbore(args!["restore", "-", "--plan"])
        .ends_with(2)
        .has_one_error("from standard input");
    fullbore(args!["restore", repository]).ends_with(2);
    assert_eq!(names(dir.path()), ["repo", "tree"]);
}

/// What is foreseen is what happens.
fn compare(repository: &Path, to: &Path) {
    for paths in [
        &[][..],
        &["large"],
        &["other name"],
        &["d"],
        &["d/017", "large"],
    ] {
        let plan = args!["restore", repository, "--plan", "--to", to, "--json"].into_iter();
        let plan = fullbore(plan.chain(paths.iter().map(Into::into)))
            .ends_with(0)
            .json()
            .remove(0);
        assert!(!to.exists());
        let run = args!["restore", repository, "--to", to, "--json"].into_iter();
        let run = fullbore(run.chain(paths.iter().map(Into::into)))
            .ends_with(0)
            .json()
            .pop()
            .unwrap();
        assert_eq!(
            (&plan["fetched_bytes"], &plan["bytes"]),
            (&run["stored_bytes"], &run["bytes"]),
            "{paths:?}"
        );
        assert_eq!(plan["files"], run["files"], "{paths:?}: {plan} {run}");
        assert!(
            plan["wanted_bytes"].as_u64() <= plan["fetched_bytes"].as_u64()
                && plan["write_rate"].as_f64() > Some(0.0)
        );
        assert!(plan["least_seconds"].as_f64() <= plan["most_seconds"].as_f64());
        assert!(["read", "decode", "write"].contains(&plan["limit"].as_str().unwrap()));
        fs::remove_dir_all(to).unwrap();
    }
}
