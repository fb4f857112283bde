use super::*;
use proptest::prelude::*;

fn picked(major: u32, online: bool, dir: &str, names: &[&str]) -> Vec<String> {
    let kind = |name: &str| {
        if name.ends_with('/') {
            FileKind::Directory
        } else {
            FileKind::File
        }
    };
    let name = |name: &&str| DirName {
        bytes: name.trim_end_matches('/').into(),
        kind: kind(name),
        inode: 1,
    };
    let mut names: Vec<DirName> = names.iter().map(name).collect();
    ClusterLayout::new(major, 202_209_061, online).retain_backed_up(dir.as_bytes(), &mut names);
    names
        .into_iter()
        .map(|name| String::from_utf8(name.bytes).unwrap())
        .collect()
}

#[test]
fn only_prepared_transactions_from_before_the_start_are_stored_while_the_server_runs() {
    let picked = |online| {
        let name = |bytes: &str| DirName {
            bytes: bytes.into(),
            kind: FileKind::File,
            inode: 1,
        };
        let mut names = vec![name("000002E4"), name("000002E5")];
        let before = BTreeSet::from([b"000002E4".to_vec(), b"000002E3".to_vec()]);
        ClusterLayout::new(15, 202_209_061, online)
            .with_prepared(before)
            .retain_backed_up(b"pg_twophase", &mut names);
        names.len()
    };
    assert_eq!((picked(true), picked(false)), (1, 2));
}

#[test]
fn only_files_of_this_server_process_are_left_out_of_the_data_directory() {
    let all = [
        "PG_VERSION",
        "backup_label",
        "backup_label.old",
        "backup_manifest",
        "base/",
        "current_logfiles",
    ];
    assert_eq!(
        picked(15, true, "", &all),
        ["PG_VERSION", "base", "current_logfiles"]
    );
    let all = [
        "postmaster.pid",
        "postmaster.pid.mine",
        "postgresql.auto.conf",
        "postgresql.auto.conf.tmp",
        "pg_wal/",
    ];
    assert_eq!(
        picked(15, true, "", &all),
        ["postmaster.pid.mine", "postgresql.auto.conf", "pg_wal"]
    );
    assert_eq!(
        picked(15, true, "", &["pg_notify/", "pg_replslot/"]),
        ["pg_notify", "pg_replslot"]
    );
    assert_eq!(
        picked(15, true, "", &[".s.PGSQL.5432.lock", ".s.PGSQL.note"]),
        [".s.PGSQL.note"]
    );
}

#[test]
fn signal_files_stay_only_where_there_is_no_label() {
    assert_eq!(
        picked(15, true, "", &["standby.signal", "recovery.signal"]),
        [""; 0]
    );
    assert_eq!(
        picked(15, false, "", &["standby.signal", "recovery.signal"]),
        ["standby.signal", "recovery.signal"]
    );
}

#[test]
fn directories_that_the_server_makes_anew_are_emptied_there_and_nowhere_else() {
    for online in [true, false] {
        for dir in EMPTIED {
            assert_eq!(
                picked(
                    15,
                    online,
                    std::str::from_utf8(dir).unwrap(),
                    &["0000", "slot/"]
                ),
                [""; 0]
            );
        }
    }
    assert_eq!(picked(15, true, "mine/pg_notify", &["0000"]), ["0000"]);
    assert_eq!(
        picked(15, true, "log", &["postmaster.pid", "pgsql_tmp1", "t1_2"]),
        ["postmaster.pid", "pgsql_tmp1", "t1_2"]
    );
}

#[test]
fn wal_stays_where_the_server_is_stopped() {
    let all = ["000000010000000000000001", "archive_status/", "summaries/"];
    assert_eq!(picked(16, true, "pg_wal", &all), ["archive_status"]);
    assert_eq!(
        picked(17, true, "pg_wal", &all),
        ["archive_status", "summaries"]
    );
    assert_eq!(
        picked(17, false, "pg_wal", &all),
        all.map(|name| name.trim_end_matches('/'))
    );
    assert_eq!(
        picked(17, true, "pg_wal/archive_status", &["0.done"]),
        [""; 0]
    );
    assert_eq!(
        picked(17, false, "pg_wal/archive_status", &["0.done"]),
        ["0.done"]
    );
}

#[test]
fn the_control_file_of_a_running_server_comes_later() {
    let all = [
        "1262",
        "pg_control",
        "pg_internal.init",
        "pg_internal.init.77",
        "pg_filenode.map",
    ];
    assert_eq!(
        picked(15, true, "global", &all),
        ["1262", "pg_filenode.map"]
    );
    assert_eq!(
        picked(15, false, "global", &all),
        ["1262", "pg_control", "pg_filenode.map"]
    );
}

#[test]
fn init_forks_of_unlogged_relations_stay_and_temporary_relations_do_not() {
    let all = [
        "10",
        "10.1",
        "10_fsm",
        "10_fsm.1",
        "10_vm",
        "10_init",
        "100",
        "100_fsm",
        "12",
        "11_init",
        "t3_10_init",
    ];
    let kept = ["10_init", "100", "100_fsm", "12", "11_init"];
    for dir in ["base/5", "pg_tblspc/16400/PG_15_202209061/5"] {
        assert_eq!(picked(15, true, dir, &all), kept);
        assert_eq!(
            picked(
                15,
                true,
                dir,
                &["t3_16400", "t3_16400_fsm.2", "t_1", "t3_16400_x", "tab"]
            ),
            ["t_1", "t3_16400_x", "tab"]
        );
        assert_eq!(
            picked(
                15,
                true,
                dir,
                &["pg_internal.init", "PG_VERSION", "pgsql_tmp9"]
            ),
            ["PG_VERSION"]
        );
    }
}

#[test]
fn wal_repairs_relations_and_the_status_of_transactions_and_nothing_else() {
    let layout = ClusterLayout::new(15, 202_209_061, true);
    let repaired = [
        "base/5/1259.2",
        "global/1262_fsm",
        "pg_tblspc/16400/PG_15_202209061/5/2619",
        "pg_xact/0000",
    ];
    assert!(
        repaired
            .iter()
            .all(|path| layout.is_repaired_by_wal(path.as_bytes()))
    );
    assert!(layout.is_repaired_by_wal(b"pg_multixact/offsets/0000"));
    let not = [
        "postgresql.auto.conf",
        "global/pg_filenode.map",
        "base/5/PG_VERSION",
        "pg_logical/1",
        "mine/1259",
    ];
    assert!(
        !not.iter()
            .any(|path| layout.is_repaired_by_wal(path.as_bytes()))
    );
}

#[test]
fn only_directly_in_its_directory_the_server_may_have_links() {
    let layout = ClusterLayout::new(15, 202_209_061, true);
    let data = [
        "base/5",
        "base/5/1259",
        "global/1262",
        "pg_tblspc/16400/PG_15_202209061",
        "pg_multixact/members",
    ];
    assert!(
        data.iter()
            .all(|path| layout.is_server_data(path.as_bytes()))
    );
    let not = [
        "pg_wal",
        "postgresql.conf",
        "server.crt",
        "pg_tblspc/16400",
        "conf.d/mine.conf",
        "log/now",
    ];
    assert!(
        !not.iter()
            .any(|path| layout.is_server_data(path.as_bytes()))
    );
}

#[test]
fn unlogged_relations_of_a_stopped_server_stay_whole() {
    let all = ["10", "10.1", "10_fsm", "10_init", "t3_10"];
    assert_eq!(
        picked(15, false, "base/5", &all),
        ["10", "10.1", "10_fsm", "10_init"]
    );
}

#[test]
fn only_the_directory_of_this_version_stays_in_a_tablespace() {
    assert_eq!(
        picked(15, true, "pg_tblspc", &["16400/", "1x/", "lost+found/"]),
        ["16400"]
    );
    let all = ["PG_15_202209061/", "PG_14_202107181/", "notes"];
    assert_eq!(
        picked(15, true, "pg_tblspc/16400", &all),
        ["PG_15_202209061"]
    );
    assert_eq!(
        picked(
            15,
            true,
            "pg_tblspc/16400/PG_15_202209061",
            &["5/", "pgsql_tmp/"]
        ),
        ["5"]
    );
    assert_eq!(picked(15, true, "base", &["5/", "pgsql_tmp/"]), ["5"]);
}

proptest! {
    #[test]
    fn no_name_is_added_or_moved_and_picking_twice_changes_nothing(
        dir in "(base|global|pg_wal|pg_tblspc|x|)(/[0-9]{1,3})?",
        names in proptest::collection::vec("t?[0-9]{1,2}(_[0-9]|_init|_fsm|_vm)?(\\.[0-9])?", 0..20),
        online: bool,
    ) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let once = picked(17, online, &dir, &names);
        let mut rest = names.iter();
        prop_assert!(once.iter().all(|kept| rest.any(|name| name == kept)));
        let again: Vec<&str> = once.iter().map(String::as_str).collect();
        prop_assert_eq!(picked(17, online, &dir, &again), once);
    }
}
