//! A server whose host only adds backups.

use super::{
    servers::debian,
    world::{World, id_of},
};

#[test]
fn a_host_that_only_adds_backs_up_a_cluster_block_by_block() {
    let Some(version) = debian() else { return };
    let server = version.start(&[], &[]);
    server.psql("CREATE TABLE t AS SELECT n FROM generate_series(1, 200000) n");
    let world = World::new();
    let (repository, me, host) = (world.repository(), world.person("me"), world.person("host"));
    world.init(&repository, &me);
    let put = args![
        "key",
        "put",
        repository,
        "--for",
        host.recipient,
        "--name",
        "db1"
    ];
    world.run_as(&me, put).ends_with(0);
    let backup = || {
        let args = args!["backup", server.socket_url(), "--to", repository, "--json"];
        let ran = world.run_as(&host, args).ends_with(0);
        ran.json().pop().unwrap()
    };
    let first = id_of(&backup());
    server.psql("UPDATE t SET n = n + 1 WHERE n < 100");
    let second = backup();
    assert_eq!(second["bases"][0], first.as_str());
    assert!(
        second["kept_bytes"].as_u64().unwrap() > 10 << 20,
        "{second}"
    );
    let out = world.path("out");
    let restore = args!["restore", repository, "--to", out, "--quiet"];
    let ran = world.run_as(&host, restore.clone()).ends_with(1);
    ran.has_one_error("can add backups and cannot read them");
    world.run_as(&me, restore).ends_with(0);
    assert!(out.join("backup_manifest").exists());
    let verify = args!["verify", repository, "--data"];
    world.run_as(&me, verify).ends_with(0);
}
