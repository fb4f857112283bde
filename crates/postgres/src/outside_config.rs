//! Configuration outside of the data directory, as Debian has it, of a cluster whose files are read by SQL.
//!
//! Such files are not in the data directory of the backup, and a restored cluster would not start without
//! them. `postgresql.conf` is made from `pg_settings`, which every role may read: so it has what included
//! files set, and no place of the old server. The other files are stored as they are, if the role may read
//! them. Files on this host are only named: their owner may have backed them up in another way.

use super::{
    data_dir::{DataDir, sql::SqlDir},
    session::ConfigPlaces,
};
use fullbore_format::{
    error::{ErrorKind, Result, quoted},
    root::EntryName,
};
use std::fmt::Write;

/// Bytes of a file, at most.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Settings that name places of the old server. Without them a server looks into its data directory.
const PLACES: [&str; 5] = [
    "config_file",
    "data_directory",
    "external_pid_file",
    "hba_file",
    "ident_file",
];
/// Files and the settings that say where they are.
const FILES: [(&str, &str); 2] = [("pg_hba.conf", "hba_file"), ("pg_ident.conf", "ident_file")];
const MAIN: &str = "postgresql.conf";

/// Files that the backup has in addition.
#[derive(Debug, Default)]
pub(super) struct OutsideConfig {
    /// Names in the data directory, with their content.
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
    /// The places that these files come from.
    places: Vec<EntryName>,
    pub(super) warnings: Vec<String>,
}

impl OutsideConfig {
    /// Reads the configuration that is not in the data directory.
    ///
    /// # Errors
    /// The server's, other than a missing right.
    pub(super) fn read(data: &SqlDir) -> Result<Self> {
        let mut found = Self::default();
        let places = data.config_places()?;
        let paths = [MAIN, FILES[0].0, FILES[1].0].map(str::as_bytes);
        let inside = data.stat(&paths)?;
        if matches!(inside.first(), Some(None)) {
            found.make_main(data, &places)?;
        }
        for ((name, setting), inside) in FILES.iter().zip(inside.iter().skip(1)) {
            if inside.is_some() {
                continue;
            }
            if let Some(place) = places.of(setting) {
                found.add_file(data, name, place)?;
            }
        }
        Ok(found)
    }

    /// Returns the files of these that the backup does not have.
    pub(super) fn missing(&self, mut outside: Vec<EntryName>) -> Vec<EntryName> {
        outside.retain(|place| !self.places.contains(place));
        outside
    }

    fn make_main(&mut self, data: &SqlDir, places: &ConfigPlaces) -> Result<()> {
        let settings = data.file_settings()?;
        let text = main_text(&settings, places.of("config_file"));
        self.files.push((MAIN, text.into_bytes()));
        self.places.extend(places.of("config_file").cloned());
        if !places.sees_all {
            self.warnings.push(
                "settings that the role may not see are not in the backup, and neither are pg_hba.conf and \
                 pg_ident.conf: `GRANT pg_read_all_settings, pg_read_server_files TO …`"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn add_file(&mut self, data: &SqlDir, name: &'static str, place: &EntryName) -> Result<()> {
        let data: &dyn DataDir = data;
        match data.read_small(&place.0, MAX_FILE_BYTES) {
            Ok(content) => {
                self.files.push((name, content));
                self.places.push(place.clone());
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind,
                    ErrorKind::Permission | ErrorKind::NotFound | ErrorKind::Corrupt
                ) =>
            {
                fullbore_platform::debug(|| error.line());
                Ok(()) // it is named as a file that is not in the backup
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns a configuration file with these settings.
fn main_text(settings: &[(String, String)], place: Option<&EntryName>) -> String {
    let place = place.map_or_else(
        || "outside of the data directory".to_owned(),
        |place| quoted(&place.0),
    );
    let mut text = format!(
        "# The configuration of the server was {place}.\n\
         # fullbore made this file from pg_settings, without settings of places.\n"
    );
    let is_plain = |value: &str| !value.chars().any(char::is_control);
    for (name, value) in settings {
        if !PLACES.contains(&name.as_str()) && is_plain(value) && is_plain(name) {
            let value = value.replace('\\', "\\\\").replace('\'', "''");
            _ = writeln!(text, "{name} = '{value}'");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_lines_that_a_server_reads_back() {
        let settings = [
            ("archive_command", r"cp '%p' \a"),
            ("data_directory", "/old"),
            ("work_mem", "4096"),
            ("bad", "a\nhba_file = '/x'"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let text = main_text(&settings, Some(&EntryName(b"/etc/pg/p.conf".to_vec())));
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [r"archive_command = 'cp ''%p'' \\a'", "work_mem = '4096'"]
        );
        assert!(text.starts_with("# The configuration of the server was \"/etc/pg/p.conf\".\n"));
    }
}
