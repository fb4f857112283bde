//! Finds the programs of a server of a major version on this host, and the libraries that it may load.

use fullbore_format::error::{Error, ErrorKind, Result};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Libraries that begin work by themselves in a server: jobs of a schedule, workers that change tables, replication.
const WORKERS: [&str; 8] = [
    "pg_cron",
    "pg_partman_bgw",
    "pg_squeeze",
    "pg_net",
    "pglogical",
    "bdr",
    "spock",
    "citus",
];

/// The programs of one installed version.
#[derive(Debug, Clone)]
pub(crate) struct ServerPrograms {
    bin: PathBuf,
    libraries: Vec<PathBuf>,
}

impl ServerPrograms {
    /// Finds the programs of this version: in `named` if it is given, else where distributions install them, and
    /// in PATH.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn find(major: u32, named: Option<&Path>) -> Result<Self> {
        let places = match named {
            Some(dir) => vec![dir.to_owned()],
            None => usual_places(major),
        };
        let found = places
            .iter()
            .find(|dir| version_in(dir) == Some(major))
            .ok_or_else(|| not_found(major, named))?;
        Ok(Self {
            libraries: library_dirs(found),
            bin: found.clone(),
        })
    }

    /// The path of a program.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Splits libraries for the server to load into those that it gets, and those that are left out.
    ///
    /// A library is loaded only from the directories of this version, and not if it begins work by itself.
    pub(crate) fn split_libraries(&self, wanted: &str) -> (Vec<String>, Vec<String>) {
        let names = wanted
            .split(',')
            .map(|name| name.trim().trim_matches('"').to_owned())
            .filter(|name| !name.is_empty());
        names.partition(|name| self.may_load(name))
    }

    fn may_load(&self, name: &str) -> bool {
        let name = name.strip_prefix("$libdir/").unwrap_or(name);
        let name = name.strip_suffix(".so").unwrap_or(name);
        let is_plain = !name.contains('/') && !WORKERS.contains(&name);
        let file = format!("{name}.so");
        is_plain && self.libraries.iter().any(|dir| dir.join(&file).is_file())
    }
}

fn not_found(major: u32, named: Option<&Path>) -> Error {
    let place = named.map_or_else(|| "on this host".to_owned(), |dir| format!("in {dir:?}"));
    let message = format!("cannot find a server of PostgreSQL {major} {place}");
    Error::new(ErrorKind::NotFound, message)
        .because("a drill starts a server of the version of the backup")
        .hint("install it, or name the directory of its programs: --bindir DIR")
}

/// Directories of programs, by the rules of Debian, PGDG for Red Hat, SUSE, Alpine, a build from source, and PATH.
fn usual_places(major: u32) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = [
        format!("/usr/lib/postgresql/{major}/bin"),
        format!("/usr/pgsql-{major}/bin"),
        format!("/usr/lib/postgresql{major}/bin"),
        format!("/usr/libexec/postgresql{major}"),
        "/usr/local/pgsql/bin".to_owned(),
    ]
    .map(PathBuf::from)
    .into();
    let path = env::var_os("PATH").unwrap_or_default();
    places.extend(env::split_paths(&path).filter(|dir| dir.is_absolute()));
    places
}

/// Returns the major version of the server whose programs are in `dir`.
fn version_in(dir: &Path) -> Option<u32> {
    let server = dir.join("postgres");
    if !server.is_file() {
        return None;
    }
    major_of(&output_of(Command::new(server).arg("--version"))?)
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0)`, also of a beta.
fn major_of(line: &str) -> Option<u32> {
    let version = line.split_once("(PostgreSQL) ")?.1;
    let end = version.find(|c: char| !c.is_ascii_digit());
    version[..end.unwrap_or(version.len())].parse().ok()
}

/// The directories of the libraries of the server with programs in `bin`.
fn library_dirs(bin: &Path) -> Vec<PathBuf> {
    let config = bin.join("pg_config");
    let told = config
        .is_file()
        .then(|| output_of(Command::new(config).arg("--pkglibdir")))
        .flatten();
    let told = told.map(|line| PathBuf::from(line.trim()));
    let prefix_dirs = bin.parent().map(|prefix| prefix.join("lib"));
    let prefix_dirs = prefix_dirs
        .into_iter()
        .flat_map(|lib| [lib.join("postgresql"), lib]);
    told.into_iter().chain(prefix_dirs).collect()
}

fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_version_of_a_server_is_read() {
        for (line, major) in [
            (
                "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n",
                Some(15),
            ),
            ("postgres (PostgreSQL) 19beta1\n", Some(19)),
            ("postgres (EnterpriseDB) x", None),
        ] {
            assert_eq!(major_of(line), major, "{line}");
        }
    }

    #[test]
    fn only_installed_libraries_that_wait_to_be_used_are_loaded() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["auto_explain.so", "pg_cron.so"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let programs = ServerPrograms {
            bin: dir.path().into(),
            libraries: vec![dir.path().into()],
        };
        let wanted = format!(
            "auto_explain, $libdir/auto_explain, pg_cron, missing, \"{}/auto_explain\"",
            dir.path().display()
        );
        let (loaded, left_out) = programs.split_libraries(&wanted);
        assert_eq!(loaded, ["auto_explain", "$libdir/auto_explain"]);
        assert_eq!(left_out[..2], ["pg_cron", "missing"]);
        assert_eq!(left_out.len(), 3);
        assert_eq!(programs.split_libraries(""), (vec![], vec![]));
    }
}
