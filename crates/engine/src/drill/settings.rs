//! The configuration of the server of a drill.
//!
//! The server reads a file that is written here, and none of the backup: a setting of the backup counts only if it is
//! named here. So the server listens on its own socket only, archives nothing, connects to no other server, runs
//! no command of the configuration but `restore_command`, and loads no library from another place.

use super::scratch::Scratch;
use fullbore_format::error::Result;
use fullbore_postgres::restore::conf;
use std::path::Path;

/// Settings that every drill has.
const FIXED: [(&str, &str); 31] = [
    ("listen_addresses", ""),
    ("port", "5432"),
    ("unix_socket_permissions", "0700"),
    ("ssl", "off"),
    ("bonjour", "off"),
    ("external_pid_file", ""),
    ("archive_mode", "off"),
    ("archive_command", ""),
    ("archive_cleanup_command", ""),
    ("recovery_end_command", ""),
    ("primary_conninfo", ""),
    ("primary_slot_name", ""),
    ("synchronous_standby_names", ""),
    // No receiver of a subscription starts.
    ("max_logical_replication_workers", "0"),
    ("max_wal_senders", "0"),
    ("autovacuum", "off"),
    // The server opens when recovery has ended, so that sizes of the original server need not be met before.
    ("hot_standby", "off"),
    ("max_connections", "20"),
    ("max_replication_slots", "200"),
    ("wal_level", "logical"),
    // The files are removed after the drill.
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_wal_size", "4GB"),
    ("shared_buffers", "128MB"),
    ("logging_collector", "off"),
    ("log_destination", "stderr"),
    ("log_line_prefix", ""),
    ("log_min_messages", "log"),
    ("log_checkpoints", "off"),
    // The log is read by this program.
    ("lc_messages", "C"),
    ("timezone", "UTC"),
];

/// Transactions that may be prepared, unless the backup's configuration permits more.
const PREPARED: u32 = 1000;
const MAX_PREPARED: &str = "max_prepared_transactions";
const LIBRARIES: &str = "shared_preload_libraries";
/// Versions that have these settings.
const IN_PLACE_SINCE: u32 = 15;

/// Settings of the server, as the configuration in the backup has them.
pub(super) struct ClusterSettings<'a> {
    /// Major version of the server.
    pub(super) major: u32,
    /// Value of `max_prepared_transactions`.
    pub(super) prepared: Option<String>,
    /// Value of `restore_command`.
    pub(super) restore_command: Option<String>,
    /// Libraries that the server may load.
    pub(super) libraries: &'a [String],
}

/// Returns the names of the settings that are taken from the backup, beside those of the recovery.
pub(super) fn taken() -> [&'static str; 3] {
    [MAX_PREPARED, LIBRARIES, "restore_command"]
}

/// Returns the text of the configuration. `recovery` are settings that the restore wrote for a recovery to a target;
/// empty without one.
///
/// # Errors
/// Of paths that are not UTF-8.
pub(super) fn configuration(
    scratch: &Scratch,
    cluster: &ClusterSettings<'_>,
    recovery: &[(String, String)],
) -> Result<String> {
    let mut settings: Vec<(String, String)> = FIXED
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let mut set = |name: &str, value: String| settings.push((name.to_owned(), value));
    for (name, path) in [
        ("data_directory", scratch.data()),
        ("hba_file", scratch.file("hba")),
        ("ident_file", scratch.file("ident")),
        ("unix_socket_directories", scratch.socket()),
    ] {
        set(name, text_of(&path)?);
    }
    // Recovery needs a slot for each prepared transaction of the cluster.
    let prepared = cluster
        .prepared
        .as_deref()
        .and_then(|text| text.parse().ok());
    set(
        MAX_PREPARED,
        PREPARED.max(prepared.unwrap_or(0)).to_string(),
    );
    set(LIBRARIES, cluster.libraries.join(", "));
    if cluster.major >= IN_PLACE_SINCE {
        set("allow_in_place_tablespaces", "on".to_owned());
    }
    if !recovery.is_empty() {
        let command = cluster.restore_command.clone();
        settings.extend(command.map(|command| ("restore_command".to_owned(), command)));
        settings.extend(
            recovery
                .iter()
                .filter(|(name, _)| is_of_recovery(name))
                .cloned(),
        );
    }
    Ok(conf::render(&settings))
}

/// Returns whether this setting of `postgresql.auto.conf`, as the restore wrote it, is for the recovery.
fn is_of_recovery(name: &str) -> bool {
    name == "restore_command" || name == "recovery_target" || name.starts_with("recovery_target_")
}

fn text_of(path: &Path) -> Result<String> {
    use fullbore_format::error::{Error, ErrorKind};
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        let message = format!("cannot drill in {path:?}: the name is not UTF-8");
        Error::new(ErrorKind::Usage, message).hint("choose another directory: --dir")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(recovery: &[(String, String)]) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path()).unwrap();
        let cluster = ClusterSettings {
            major: 18,
            prepared: Some("5000".into()),
            restore_command: Some("of the backup".into()),
            libraries: &["auto_explain".into()],
        };
        let text = configuration(&scratch, &cluster, recovery).unwrap();
        conf::settings(text.as_bytes())
    }

    fn value(settings: &[(String, String)], name: &str) -> Option<String> {
        let found = settings.iter().rfind(|(set, _)| set == name);
        found.map(|(_, value)| value.clone())
    }

    #[test]
    fn without_a_target_no_command_of_the_backup_is_in_the_configuration() {
        let settings = written(&[]);
        assert_eq!(value(&settings, "restore_command"), None);
        assert_eq!(value(&settings, "archive_mode").unwrap(), "off");
        assert_eq!(value(&settings, MAX_PREPARED).unwrap(), "5000");
        assert_eq!(value(&settings, LIBRARIES).unwrap(), "auto_explain");
    }

    #[test]
    fn of_the_settings_of_a_restore_only_those_of_the_recovery_count() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let settings = written(&[
            pair("recovery_target_xid", "7"),
            pair("restore_command", "of the operator"),
            pair("archive_command", "rm -rf"),
            pair("recovery_end_command", "rm -rf"),
        ]);
        assert_eq!(value(&settings, "recovery_target_xid").unwrap(), "7");
        assert_eq!(
            value(&settings, "restore_command").unwrap(),
            "of the operator"
        );
        assert_eq!(value(&settings, "archive_command").unwrap(), "");
        assert_eq!(value(&settings, "recovery_end_command").unwrap(), "");
    }
}
