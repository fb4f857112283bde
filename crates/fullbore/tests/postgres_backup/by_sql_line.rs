//! Clusters that are read by SQL over a line that is late, or that breaks.

use super::{
    args,
    by_sql::files,
    cluster::{Cluster, debian},
    runs::fullbore,
    slow_line::SlowLine,
};
use std::{fs, sync::atomic::Ordering::Relaxed, time::Duration};

/// The address of a cluster at the other end of a line.
fn url_over(line: &SlowLine) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", line.port)
}

#[test]
fn over_a_slow_line_files_are_asked_for_with_few_statements() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &["log_min_duration_statement = 0"]);
    cluster.psql_each(&["VACUUM", "CHECKPOINT"]);
    cluster.backup("files", &["--quiet"]).ends_with(0);
    let socket = cluster.path(".s.PGSQL.5432");
    let line = SlowLine::to(&socket, Duration::from_millis(20), 100_000_000);
    let to = cluster.path("there");
    let before = cluster.log().len();
    let backup = args![
        "backup",
        url_over(&line),
        "--to",
        to,
        "--via",
        "sql",
        "--quiet"
    ];
    fullbore(backup).ends_with(0);
    let log = cluster.log()[before..].to_owned();
    let is_read = |line: &&str| line.contains("execute s") && line.contains("pg_read_binary_file");
    let statements = log.lines().filter(is_read).count() as u64;
    assert_eq!(files(&to), files(&cluster.path("files")));
    // Each of the four sessions asks for some windows of 4 MiB at once; late files come one by one.
    let megabytes = line.received.load(Relaxed) >> 20;
    assert!(megabytes > 30, "{megabytes}");
    assert!(statements < 30, "{statements} for {megabytes} MB");
}

#[test]
fn a_session_that_is_cut_at_any_statement_ends_the_backup() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let line = SlowLine::to(&cluster.path(".s.PGSQL.5432"), Duration::ZERO, u64::MAX);
    let to = cluster.path("repository");
    let mut failures = 0;
    for cut in (1..).step_by(11) {
        line.left.store(cut, Relaxed);
        let backup = args![
            "backup",
            url_over(&line),
            "--to",
            to,
            "--via",
            "sql",
            "--quiet"
        ];
        let ran = fullbore(backup);
        let is_cut = line.left.load(Relaxed) <= 0;
        if ran.code == 0 {
            // Some questions need no answer: they only save work.
            fullbore(args!["verify", to, "--data", "--quiet"]).ends_with(0);
            fs::remove_dir_all(&to).unwrap();
            if !is_cut {
                break;
            }
            continue;
        }
        failures += 1;
        ran.ends_with(1);
        let listed = fullbore(args!["list", to, "--json"]);
        assert!(!listed.out.contains("\"id\""), "{}", listed.out);
    }
    assert!(failures > 8, "{failures}");
    line.left.store(i64::MAX, Relaxed);
    cluster.assert_nothing_is_left();
}
