//! What a restore will cost is told before it is begun.

#![allow(missing_docs)]

mod runs;

use runs::{fullbore, names, noise, temp, text};
use std::fs;

#[test]
fn a_plan_counts_what_the_restore_then_fetches_and_writes_nothing() {
    let dir = temp();
    let (tree, repository, to) = (dir.path().join("tree"), dir.path().join("repo"), dir.path().join("to"));
    for i in 0..200 {
        runs::write(tree.join(format!("d/{i:03}")), text(i, 3000));
    }
    runs::write(tree.join("large"), noise(1, 3_000_000));
    fs::hard_link(tree.join("large"), tree.join("other name")).unwrap();
    fullbore(args!["backup", tree, "--to", repository, "--quiet", "--segment-size", "1M"]).ends_with(0);
    for paths in [&[][..], &["large"], &["other name"], &["d"], &["d/017", "large"]] {
        let plan = args!["restore", repository, "--plan", "--to", to, "--json"].into_iter();
        let plan = fullbore(plan.chain(paths.iter().map(Into::into))).ends_with(0).json().remove(0);
        assert!(!to.exists());
        let run = args!["restore", repository, "--to", to, "--json"].into_iter();
        let run = fullbore(run.chain(paths.iter().map(Into::into))).ends_with(0).json().pop().unwrap();
        assert_eq!((&plan["fetched_bytes"], &plan["bytes"]), (&run["stored_bytes"], &run["bytes"]), "{paths:?}");
        assert!(plan["files"] == run["files"] || paths == ["other name"], "{paths:?}: {plan} {run}");
        assert!(
            plan["wanted_bytes"].as_u64() <= plan["fetched_bytes"].as_u64() && plan["write_rate"].as_f64() > Some(0.0)
        );
        assert!(plan["least_seconds"].as_f64() <= plan["most_seconds"].as_f64());
        assert!(["read", "decode", "write"].contains(&plan["limit"].as_str().unwrap()));
        fs::remove_dir_all(&to).unwrap();
    }
    let one = fullbore(args!["restore", repository, "--plan", "d/017"]).ends_with(0).out;
    assert!(
        one.contains("\nwanted        1 file, 3.00 kB\n") && one.contains(" in 1 frame, from 1 segment of 1 backup\n"),
        "{one}"
    );
    assert!(one.contains("\nwrite         not measured\n"), "{one}");
    fullbore(args!["restore", repository, "--plan", "nowhere"]).ends_with(1).has_one_error("could not find");
    fullbore(args!["restore", repository]).ends_with(2);
    assert_eq!(names(dir.path()), ["repo", "tree"]);
}
