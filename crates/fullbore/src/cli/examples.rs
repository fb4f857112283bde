//! Three examples of each command, for `--help` and the manual.

/// Examples of a command: lines of text and command, in pairs.
type CommandExamples = [(&'static str, &'static str); 3];

/// The examples of each command.
const EXAMPLES: [(&str, CommandExamples); 37] = [
    (
        "backup",
        [
            (
                "Back up a directory to a disk",
                "fullbore backup /srv/data --to /mnt/disk/data --exclude '*.tmp'",
            ),
            (
                "Back up the PostgreSQL cluster of this host",
                "fullbore backup postgres:// --to /mnt/disk/pg",
            ),
            (
                "Store the output of a command, or nothing if it fails",
                "fullbore backup --to /mnt/disk/shop --stdin-name shop.sql --stdin-from-command -- pg_dump shop",
            ),
        ],
    ),
    (
        "init",
        [
            (
                "Make a repository on a disk",
                "fullbore init /mnt/disk/data",
            ),
            (
                "Make an encrypted one in a bucket",
                "fullbore init s3://vault/data --passphrase",
            ),
            (
                "Make the repository of a profile",
                "fullbore init --profile web",
            ),
        ],
    ),
    (
        "restore",
        [
            (
                "Restore the latest backup into a new directory",
                "fullbore restore /mnt/disk/data --to /srv/back",
            ),
            (
                "Restore one directory of an earlier backup",
                "fullbore restore /mnt/disk/data@20261121 --to /srv/back docs",
            ),
            (
                "Make a directory equal to the backup, and write only what differs",
                "fullbore restore /mnt/disk/data --to /srv/data --delta --delete",
            ),
        ],
    ),
    (
        "drill",
        [
            (
                "Show that the latest backup of a cluster restores, recovers and answers",
                "fullbore drill /mnt/disk/pg --query 'select count(*) from pg_class'",
            ),
            (
                "The same to a point in time",
                "fullbore drill /mnt/disk/pg --target-time '2026-11-21 05:45:01+00'",
            ),
            (
                "On a disk with room, with numbers for Prometheus",
                "fullbore drill /mnt/disk/pg --dir /mnt/scratch --metrics /var/lib/node_exporter/drill.prom",
            ),
        ],
    ),
    (
        "list",
        [
            ("List backups", "fullbore list /mnt/disk/data"),
            (
                "List the files of the latest",
                "fullbore list /mnt/disk/data@latest",
            ),
            (
                "List backups of one host for a program",
                "fullbore list /mnt/disk/data --host web --json",
            ),
        ],
    ),
    (
        "show",
        [
            ("Show the latest backup", "fullbore show /mnt/disk/data"),
            (
                "Show an earlier one",
                "fullbore show /mnt/disk/data@20261121",
            ),
            (
                "Show the latest of a host",
                "fullbore show /mnt/disk/data --host web",
            ),
        ],
    ),
    (
        "verify",
        [
            (
                "Check the structure of all backups",
                "fullbore verify /mnt/disk/data",
            ),
            (
                "Check for half an hour, the data that was checked longest ago first",
                "fullbore verify /mnt/disk/data --for 30m",
            ),
            (
                "Compare the latest backup with a directory",
                "fullbore verify /mnt/disk/data@latest --against /srv/data",
            ),
        ],
    ),
    (
        "export",
        [
            (
                "Write the latest backup to one file",
                "fullbore export /mnt/disk/data --to data.tar.zst",
            ),
            (
                "Write a tar to another program",
                "fullbore export /mnt/disk/data --to - --compress none",
            ),
            (
                "Write a full backup to another repository",
                "fullbore export /mnt/disk/data --to /mnt/other/data",
            ),
        ],
    ),
    (
        "diff",
        [
            (
                "Print what changed in the last backup",
                "fullbore diff /mnt/disk/data",
            ),
            (
                "Compare two backups",
                "fullbore diff /mnt/disk/data 20261121 latest",
            ),
            (
                "Compare one directory of them",
                "fullbore diff /mnt/disk/data 20261121 latest docs",
            ),
        ],
    ),
    (
        "find",
        [
            (
                "Find all backups of a file",
                "fullbore find /mnt/disk/data docs/a.txt",
            ),
            ("Find by a pattern", "fullbore find /mnt/disk/data '*.sql'"),
            (
                "Find for a program",
                "fullbore find /mnt/disk/data '*.sql' --json",
            ),
        ],
    ),
    (
        "copy",
        [
            (
                "Copy a directory, and delete what its source lacks",
                "fullbore copy /srv/data /mnt/disk/data --delete",
            ),
            (
                "Copy it to another host; first only say what would change",
                "fullbore copy /srv/data ssh://db2/srv/data --delete --dry-run",
            ),
            (
                "Copy a backup to another repository",
                "fullbore copy /mnt/disk/data@latest /mnt/other/data",
            ),
        ],
    ),
    (
        "sync",
        [
            (
                "Copy what the second repository lacks",
                "fullbore sync /mnt/disk/data /mnt/other/data",
            ),
            (
                "First only say what would be copied",
                "fullbore sync /mnt/disk/data /mnt/other/data --dry-run",
            ),
            (
                "Keep other backups there than here",
                "fullbore sync /mnt/disk/data /mnt/other/data --keep-weekly 8 --keep-monthly 12",
            ),
        ],
    ),
    (
        "stats",
        [
            (
                "Say how much the backups of a repository take",
                "fullbore stats /mnt/disk/data",
            ),
            (
                "Say it of the repository of a profile",
                "fullbore stats --profile web",
            ),
            (
                "Say it to a program",
                "fullbore stats /mnt/disk/data --json",
            ),
        ],
    ),
    (
        "fleet",
        [
            (
                "Say which sources are late or have other trouble",
                "fullbore fleet /mnt/disk/web /mnt/disk/db",
            ),
            (
                "Count a source as late after 26 hours, whatever it says",
                "fullbore fleet /mnt/disk/web --every 24h",
            ),
            (
                "Say it to Prometheus",
                "fullbore fleet /mnt/disk/web --quiet --metrics /var/lib/node_exporter/fleet.prom",
            ),
        ],
    ),
    (
        "host",
        [
            (
                "Let a host add backups, and set it up",
                "fullbore host add /backup/web web1 --source /srv/www --key me.key",
            ),
            (
                "The same with a certificate for a server without ssh",
                "fullbore host add /backup/web web1 --source /srv/www --at fullbore://vault:7070 --ca /root/ca",
            ),
            (
                "End it",
                "fullbore host remove /backup/web web1 --key me.key",
            ),
        ],
    ),
    (
        "cat",
        [
            (
                "Print a file of the latest backup",
                "fullbore cat /mnt/disk/data etc/fstab",
            ),
            (
                "Print a file of an earlier backup",
                "fullbore cat /mnt/disk/data@yesterday etc/fstab",
            ),
            (
                "Print a directory as a tar, for another program",
                "fullbore cat /mnt/disk/data docs",
            ),
        ],
    ),
    (
        "tape",
        [
            (
                "Say whether a drive is ready",
                "fullbore tape status /dev/nst0",
            ),
            (
                "Give a blank tape a name",
                "fullbore tape label /dev/nst0 A00001L8",
            ),
            ("List what is on a tape", "fullbore tape list /dev/nst0"),
        ],
    ),
    (
        "simtape",
        [
            (
                "Make a drive of another generation, and print its parameters",
                "fullbore simtape cartridge --drive lto-8",
            ),
            (
                "Be the remote shell of GNU tar",
                "fullbore simtape cartridge --rmt",
            ),
            (
                "Make a small tape that fails once",
                "fullbore simtape cartridge --set capacity-bytes=1G --set faults=write@120",
            ),
        ],
    ),
    (
        "web",
        [
            (
                "Look into a repository with a browser",
                "fullbore web /mnt/disk/data",
            ),
            (
                "Let the pages restore, too",
                "fullbore web /mnt/disk/data --allow-restore",
            ),
            (
                "Offer a repository to a team, with passwords",
                "fullbore web s3://vault/data --listen 0.0.0.0:8443 --name backup.example \\\n      --password-file passwords --tls-cert cert.pem --tls-key key.pem",
            ),
        ],
    ),
    (
        "mount",
        [
            (
                "Look at all backups",
                "fullbore mount /mnt/disk/data /mnt/backups",
            ),
            (
                "Look at the latest backup of a bucket",
                "fullbore mount s3://vault/data@latest /mnt/backup",
            ),
            (
                "Let other users in, with the rights of the backup; `umount` ends it",
                "fullbore mount /mnt/disk/data /mnt/backups --allow-other",
            ),
        ],
    ),
    (
        "forget",
        [
            (
                "Keep a week of days, a month of weeks and a year of months",
                "fullbore forget /mnt/disk/data --keep-daily 7 --keep-weekly 4 --keep-monthly 12",
            ),
            (
                "Say what would be forgotten",
                "fullbore forget /mnt/disk/data --keep-within 30d --dry-run",
            ),
            (
                "Forget one backup",
                "fullbore forget /mnt/disk/data 20261121",
            ),
        ],
    ),
    (
        "prune",
        [
            (
                "Free the space of forgotten backups",
                "fullbore prune /mnt/disk/data",
            ),
            (
                "Say how much that would be",
                "fullbore prune /mnt/disk/data --dry-run",
            ),
            (
                "Prune the repository of a profile",
                "fullbore prune --profile web",
            ),
        ],
    ),
    (
        "tag",
        [
            (
                "Print the tags of the latest backup",
                "fullbore tag /mnt/disk/data@latest",
            ),
            ("Set one", "fullbore tag /mnt/disk/data@latest state=good"),
            ("Take it away", "fullbore tag /mnt/disk/data@latest state="),
        ],
    ),
    (
        "pin",
        [
            (
                "Keep the latest backup for ever",
                "fullbore pin /mnt/disk/data@latest",
            ),
            (
                "Keep an earlier one",
                "fullbore pin /mnt/disk/data@20261121",
            ),
            (
                "Keep the latest of a profile",
                "fullbore pin --profile web @latest",
            ),
        ],
    ),
    (
        "unpin",
        [
            (
                "Let rules decide on the latest backup again",
                "fullbore unpin /mnt/disk/data@latest",
            ),
            (
                "Let them decide on an earlier one",
                "fullbore unpin /mnt/disk/data@20261121",
            ),
            (
                "Let them decide on the latest of a profile",
                "fullbore unpin --profile web @latest",
            ),
        ],
    ),
    (
        "key",
        [
            (
                "List the keys of a repository",
                "fullbore key list /mnt/disk/data",
            ),
            (
                "List those of a bucket",
                "fullbore key list s3://vault/data --key vault.key",
            ),
            (
                "Seal later backups with a new key",
                "fullbore key rotate /mnt/disk/data --key admin.key",
            ),
        ],
    ),
    (
        "wal",
        [
            (
                "Archive what a server has finished, in postgresql.conf",
                "fullbore wal push pg_wal/000000010000000000000001 --to /mnt/disk/pg",
            ),
            (
                "Fetch a segment for a recovery, which a restore sets up by itself",
                "fullbore wal get 000000010000000000000001 pg_wal/RECOVERYXLOG --from /mnt/disk/pg",
            ),
            (
                "List timelines, segments and gaps",
                "fullbore wal list /mnt/disk/pg",
            ),
        ],
    ),
    (
        "repair",
        [
            (
                "Say what is damaged, and what can be rebuilt",
                "fullbore repair /mnt/disk/data",
            ),
            ("Do it", "fullbore repair /mnt/disk/data --yes"),
            (
                "Read all data, and mark what is lost",
                "fullbore repair /mnt/disk/data --data --yes",
            ),
        ],
    ),
    (
        "serve",
        [
            (
                "Answer another host, which starts this through ssh",
                "fullbore serve --stdio",
            ),
            (
                "Offer it to hosts with a certificate, without ssh",
                "fullbore serve --listen 0.0.0.0:7070 --allow append:/mnt/disk/data --tls-cert vault.pem --tls-key vault.key --tls-ca ca.pem",
            ),
            (
                "Let one host add its backups to a repository",
                "fullbore serve --stdio --allow append:/mnt/disk/data --host web1",
            ),
        ],
    ),
    (
        "run",
        [
            (
                "Back up, forget, prune and verify, as web.toml says",
                "fullbore run web",
            ),
            (
                "Do the same with a file elsewhere",
                "fullbore run --config /srv/web.toml",
            ),
            (
                "Write numbers for node_exporter",
                "fullbore run web --metrics /var/lib/node_exporter/web.prom",
            ),
        ],
    ),
    (
        "config",
        [
            (
                "Check a profile, and print its commands",
                "fullbore config check web",
            ),
            ("Check all profiles", "fullbore config check"),
            (
                "Check a file elsewhere",
                "fullbore config check --config /srv/web.toml",
            ),
        ],
    ),
    (
        "systemd",
        [
            ("Print the units of a profile", "fullbore systemd web"),
            (
                "Install them",
                "fullbore systemd web --to /etc/systemd/system",
            ),
            (
                "Print those of a file elsewhere",
                "fullbore systemd --config /srv/web.toml",
            ),
        ],
    ),
    (
        "schedule",
        [
            (
                "Back up the home directory each day",
                "fullbore schedule daily ~ --to /mnt/disk/home",
            ),
            ("List what is scheduled", "fullbore schedule"),
            ("End all of it", "fullbore schedule off"),
        ],
    ),
    (
        "status",
        [
            ("Remind of backups that are late", "fullbore status"),
            (
                "Remind of backups that are older than two days",
                "fullbore status --late 2d",
            ),
            ("Print the age of all", "fullbore status -v"),
        ],
    ),
    (
        "bench",
        [
            ("Measure digests", "fullbore bench digest"),
            (
                "Measure how fast a directory is read",
                "fullbore bench read /srv/data",
            ),
            ("Print it for a program", "fullbore bench digest --json"),
        ],
    ),
    (
        "completions",
        [
            ("Print those of bash", "fullbore completions bash"),
            ("Print those of zsh", "fullbore completions zsh"),
            ("Print those of fish", "fullbore completions fish"),
        ],
    ),
    (
        "man",
        [
            ("Print the page of the program", "fullbore man"),
            (
                "Write the pages of all commands",
                "fullbore man --to /usr/local/share/man/man1",
            ),
            ("Write them here", "fullbore man --to ."),
        ],
    ),
];

/// The name of a command, as long as this program runs.
pub(super) fn bare_name(command: &str) -> Option<&'static str> {
    let mut known = EXAMPLES.iter().map(|(name, _)| *name);
    known.find(|name| *name == command)
}

/// The examples of a command: pairs of a text and a command line; none for the program itself.
pub(super) fn examples(command: &str) -> &'static [(&'static str, &'static str)] {
    let mut known = EXAMPLES.iter();
    known
        .find(|(name, _)| *name == command)
        .map_or(&[], |(_, examples)| examples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{self, Cli};
    use clap::FromArgMatches;
    use std::ffi::OsString;

    /// The words of a command line with single quotes.
    fn words(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (index, part) in line.split('\'').enumerate() {
            if index % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        words
    }

    #[test]
    fn every_command_has_three_examples_that_it_understands() {
        let program = args::command();
        for command in program.get_subcommands() {
            let name = command.get_name();
            let of_command = examples(name);
            assert!(of_command.len() == 3 || name == "help", "{name}");
            for (_, line) in of_command {
                let mut words = words(line);
                assert_eq!(words[1], name);
                // The profile would give the repository.
                if let Some(index) = words.iter().position(|word| word == "--profile") {
                    words[index] = "--config".to_owned();
                    let is_repository = !line.contains('@');
                    words.extend(is_repository.then(|| "/mnt/disk/data".to_owned()));
                }
                let parsed = program.clone().try_get_matches_from(&words);
                let parsed = parsed.and_then(|found| Cli::from_arg_matches(&found));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                let words: Vec<_> = words.iter().map(OsString::from).collect();
                let small = args::program_for(&words).try_get_matches_from(&words);
                let small = small.and_then(|found| Cli::from_arg_matches(&found));
                assert_eq!(format!("{small:?}"), format!("{parsed:?}"), "{line}");
            }
        }
    }
}
