//! What the pages say about clusters, and the command that they give.

use super::{
    args,
    cluster::{Cluster, versions},
    recovery::{archiving, backup, switch},
    runs::{FULLBORE, fullbore, shell},
    servers::wait_until,
};
use std::{fs, path::PathBuf};
use testkit::{
    browser::Browser,
    web::{Session, WebServer},
};

#[test]
fn the_page_of_a_cluster_gives_the_command_that_restores_to_a_time() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    backup(&cluster, &repository, &[]);
    cluster.psql("CREATE TABLE t AS SELECT generate_series(1, 1000) n");
    switch(&cluster);
    let wanted = "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    let time = cluster.psql(wanted);
    std::thread::sleep(std::time::Duration::from_millis(50));
    cluster.psql("INSERT INTO t SELECT generate_series(1, 500000)");
    switch(&cluster);
    let session = Session::of(&repository);
    let listed = fullbore(args!["wal", "list", &repository, "--json"]).json();
    let shown = session.api("postgres?r=0");
    let cluster_shown = &shown["clusters"][0];
    assert_eq!(cluster_shown["wal"], listed[0]);
    assert_eq!(cluster_shown["backup_count"], 1);
    assert!(cluster_shown["point"].is_null());
    let system = cluster_shown["system"].as_str().unwrap();
    let shown = session.api(&format!("postgres?r=0&system={system}&t={time}"));
    let point = &shown["clusters"][0]["point"];
    let command = point["command"].as_str().expect("a command");
    assert!(command.starts_with("fullbore restore ") && command.contains("--target-time"));
    // The command as it is, but for the program and the directory.
    let target = cluster.path("restored");
    let command = command
        .replacen("fullbore", FULLBORE, 1)
        .replace("/var/lib/postgresql/restored", target.to_str().unwrap());
    shell(&command, args![]).ends_with(0);
    let settings = fs::read_to_string(target.join("postgresql.auto.conf")).unwrap();
    assert!(settings.contains("recovery_target_time"), "{settings}");
    let early = session.api(&format!(
        "postgres?r=0&system={system}&t=2000-01-01T00:00:00"
    ));
    assert!(early["clusters"][0]["point"]["command"].is_null());
    let page = session.get("postgres?r=0").is(200).text();
    assert!(page.contains(&format!("System {system}")) && page.contains("Timelines"));
}

/// Draws the picture of the documents: `scripts/web-pictures` says where.
#[test]
fn pictures_of_a_cluster_are_drawn() {
    let to = std::env::var_os("FULLBORE_WEB_PICTURES").map(PathBuf::from);
    let (Some(to), Some(version)) = (to, versions().last()) else {
        return;
    };
    let (cluster, repository) = archiving(version, "backup");
    backup(&cluster, &repository, &["--host", "db1"]);
    cluster.psql("CREATE TABLE t (n int)");
    switch(&cluster);
    // A standby took over, and archives the timeline that it began.
    let flags = ["--recovery", "point", "--set", "archive_timeout=60"];
    let next = Cluster::restored_with(version, &repository, &flags);
    next.start();
    wait_until("the server is open", || {
        next.psql("SELECT pg_is_in_recovery()") == "f"
    });
    for _ in 0..3 {
        next.psql("INSERT INTO t SELECT generate_series(1, 1000)");
        switch(&next);
        backup(&next, &repository, &["--host", "db1"]);
    }
    let server = WebServer::within(repository.parent().unwrap(), "backup");
    let mut browser = Browser::start();
    browser.open(&server.address());
    browser.has_heading("Sources");
    let wal = fullbore(args!["wal", "list", &repository, "--json"]).json();
    let system = wal[0]["system"].as_str().unwrap();
    let time = next.psql("SELECT to_char(now(), 'YYYY-MM-DD\"T\"HH24:MI:SS')");
    let (host, base) = (&server.host, &server.base);
    let page = format!("http://{host}{base}postgres?r=0&system={system}&t={time}");
    browser.draw(&page, &to, "postgres");
}
