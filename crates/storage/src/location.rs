//! Reads what FROM, REPO and DEST say on the command line.
//!
//! This is the only place that decides what such a word means. A word that begins like a URL and is a file is written as `./s3:/x`.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
};
use fullbore_platform::write::is_in_the_way;
use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// What begins a URL of an object store, and which store that is.
const CLOUDS: [(&str, CloudStore); 3] = [
    ("s3://", CloudStore::S3),
    ("gs://", CloudStore::Google),
    ("az://", CloudStore::Azure),
];

/// A place that backups are read from or written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// `-`: standard input or output.
    Standard,
    /// `null:`: bytes are counted and dropped.
    Null,
    /// A file or directory of this machine.
    Local(PathBuf),
    /// `volumes:PREFIX`: files `PREFIX-BACKUP-001.tar.zst` and so on.
    Volumes(PathBuf),
    /// `tape:DRIVE`: a backup on tapes; without a drive, one that the catalog of this host knows.
    Tape(OsString),
    /// `s3://BUCKET/PREFIX`, `gs://` or `az://`.
    Cloud {
        /// The kind of the store.
        store: CloudStore,
        /// The bucket, or the container of Azure.
        bucket: String,
        /// What all keys begin with, without slashes at its ends; may be empty.
        prefix: String,
    },
    /// `ssh://HOST/PATH`.
    Ssh {
        /// `HOST`, with `USER@` before and `:PORT` behind as given.
        host: String,
        /// The path on that host, with the leading slash.
        path: PathBuf,
    },
    /// `fullbore://HOST:PORT/PATH`: a server of this program; without a path, what it offers.
    Server(String),
    /// `peer:NAME`: what the other side of standard input offers to a command that it has started here. Its user calls it NAME.
    Peer(String),
}

/// The object stores that have a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudStore {
    /// Amazon S3 and compatible stores.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

/// What is at a location now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A repository; objects of a store that is not this machine's are taken for one unasked.
    Repository,
    /// A directory without the file that makes it a repository.
    Directory,
    /// A file, a pipe or a device.
    File,
    /// Nothing.
    Nothing,
    /// The system does not tell, as a directory above cannot be read.
    Unknown,
}

impl Location {
    /// Parses a word of the command line. Whether something is there is not asked.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a URL without a host or bucket.
    pub fn parse(word: &OsStr) -> Result<Self> {
        let bytes = word.as_bytes();
        match bytes {
            b"-" => return Ok(Self::Standard),
            b"null:" => return Ok(Self::Null),
            _ => {}
        }
        if let Some(prefix) = bytes.strip_prefix(b"volumes:") {
            must_be_named(
                &word.to_string_lossy(),
                &String::from_utf8_lossy(prefix),
                "a prefix",
            )?;
            return Ok(Self::Volumes(OsStr::from_bytes(prefix).into()));
        }
        if let Some(drive) = bytes.strip_prefix(b"tape:") {
            return Ok(Self::Tape(OsStr::from_bytes(drive).into()));
        }
        let Some(url) = word.to_str() else {
            return Ok(Self::Local(word.into()));
        };
        for (scheme, store) in CLOUDS {
            if let Some(rest) = url.strip_prefix(scheme) {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                must_be_named(url, bucket, "a bucket")?;
                return Ok(Self::Cloud {
                    store,
                    bucket: bucket.to_owned(),
                    prefix: prefix.trim_matches('/').to_owned(),
                });
            }
        }
        if let Some(rest) = url.strip_prefix("ssh://") {
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            must_be_named(url, host, "a host")?;
            must_be_named(url, path, "a path")?;
            return Ok(Self::Ssh {
                host: host.to_owned(),
                path: PathBuf::from(format!("/{path}")),
            });
        }
        if let Some(name) = url.strip_prefix("peer:") {
            return Ok(Self::Peer(name.to_owned()));
        }
        if let Some(server) = url.strip_prefix("fullbore://") {
            must_be_named(url, server, "a host")?;
            return Ok(Self::Server(server.to_owned()));
        }
        Ok(Self::Local(word.into()))
    }

    /// Returns the path, if it is one of this machine.
    pub fn as_local(&self) -> Option<&Path> {
        match self {
            Self::Local(path) => Some(path),
            _ => None,
        }
    }

    /// Returns what is there, by one look at a local path.
    pub fn look(&self) -> Found {
        match self {
            Self::Local(path) => look_at(path),
            Self::Standard | Self::Null | Self::Volumes(_) | Self::Tape(_) => Found::File,
            Self::Cloud { .. } | Self::Ssh { .. } | Self::Server(_) | Self::Peer(_) => {
                Found::Repository
            }
        }
    }

    /// Returns whether a repository is there.
    pub fn is_repository(&self) -> bool {
        self.look() == Found::Repository
    }

    /// Returns the error for a location that has no objects, or none that this program reaches.
    pub(super) fn refused(&self) -> Error {
        Error::new(
            ErrorKind::Usage,
            format!("cannot use {self} as a repository"),
        )
        .hint("a repository is a directory; \"./-\" is a file or directory of that name")
    }
}

impl Location {
    /// Returns the word of the command line that means this location; lossy for a path that is no text.
    pub fn text(&self) -> String {
        match self {
            Self::Standard => "-".to_owned(),
            Self::Null => "null:".to_owned(),
            Self::Local(path) => path.display().to_string(),
            Self::Volumes(prefix) => format!("volumes:{}", prefix.display()),
            Self::Tape(drive) => format!("tape:{}", drive.display()),
            Self::Cloud {
                store,
                bucket,
                prefix,
            } => format!("{}{bucket}/{prefix}", scheme_of(*store)),
            Self::Ssh { host, path } => format!("ssh://{host}{}", path.display()),
            Self::Server(server) => format!("fullbore://{server}"),
            Self::Peer(name) => format!("peer:{name}"),
        }
    }
}

/// As messages call it, in quotes.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "{path:?}"),
            _ => write!(f, "{:?}", self.text()),
        }
    }
}

fn scheme_of(store: CloudStore) -> &'static str {
    match store {
        CloudStore::S3 => "s3://",
        CloudStore::Google => "gs://",
        CloudStore::Azure => "az://",
    }
}

fn must_be_named(url: &str, part: &str, what: &str) -> Result<()> {
    if !part.is_empty() {
        return Ok(());
    }
    Err(
        Error::new(ErrorKind::Usage, format!("cannot use {url:?}: it names no {}", &what[2..]))
            .hint("s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, ssh://HOST/PATH, fullbore://HOST:PORT/PATH, volumes:PREFIX, tape:DRIVE, or a path such as ./NAME"),
    )
}

fn look_at(path: &Path) -> Found {
    let facts = match path.metadata() {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_in_the_way(&error) => {
            return Found::Nothing;
        }
        Err(_) => return Found::Unknown,
    };
    if !facts.is_dir() {
        Found::File
    } else if path.join(REPOSITORY).is_file() {
        Found::Repository
    } else {
        Found::Directory
    }
}

/// Returns the repository that a path is inside of, if it is the path of an object of one.
pub fn repository_around(path: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let above = whole.ancestors().nth(3)?;
    above
        .join(REPOSITORY)
        .is_file()
        .then(|| above.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(word: &str) -> Location {
        Location::parse(OsStr::new(word)).unwrap()
    }

    #[test]
    fn words_are_paths_unless_they_begin_with_a_scheme() {
        for path in [
            "/srv", "repo@x", "./s3:/x", "./-", "s3:/x", "S3://b", "-x", "",
        ] {
            assert_eq!(parsed(path), Location::Local(path.into()), "{path}");
        }
        let bytes = OsStr::from_bytes(b"s3://\xff");
        assert_eq!(
            Location::parse(bytes).unwrap(),
            Location::Local(bytes.into())
        );
        assert_eq!(parsed("-"), Location::Standard);
        assert_eq!(parsed("null:"), Location::Null);
        assert_eq!(parsed("volumes:/mnt/a"), Location::Volumes("/mnt/a".into()));
        let tape = Location::Tape("/dev/nst0".into());
        assert_eq!(parsed("tape:/dev/nst0"), tape);
        assert_eq!(tape.to_string(), "\"tape:/dev/nst0\"");
        assert_eq!(parsed("tape:"), Location::Tape("".into()));
    }

    #[test]
    fn urls_are_taken_apart_and_printed_as_they_were() {
        let cloud = |store, bucket: &str, prefix: &str| Location::Cloud {
            store,
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        assert_eq!(
            parsed("s3://vault/a/b/"),
            cloud(CloudStore::S3, "vault", "a/b")
        );
        assert_eq!(parsed("gs://vault"), cloud(CloudStore::Google, "vault", ""));
        assert_eq!(parsed("az://vault/"), cloud(CloudStore::Azure, "vault", ""));
        let ssh = Location::Ssh {
            host: "me@db1:22".into(),
            path: "/backup".into(),
        };
        assert_eq!(parsed("ssh://me@db1:22/backup"), ssh);
        assert_eq!(ssh.to_string(), "\"ssh://me@db1:22/backup\"");
        assert_eq!(parsed("s3://vault/a").to_string(), "\"s3://vault/a\"");
        for bad in [
            "s3://",
            "gs:///x",
            "ssh://",
            "ssh://h",
            "ssh:///x",
            "volumes:",
            "fullbore://",
        ] {
            let error = Location::parse(OsStr::new(bad)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }

    #[test]
    fn one_look_tells_a_repository_from_a_directory_and_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let look = |path: &Path| Location::Local(path.into()).look();
        assert_eq!(look(dir.path()), Found::Directory);
        assert_eq!(look(&dir.path().join("absent")), Found::Nothing);
        std::fs::write(dir.path().join(REPOSITORY), "").unwrap();
        assert_eq!(look(dir.path()), Found::Repository);
        assert_eq!(look(&dir.path().join(REPOSITORY)), Found::File);
        assert_eq!(look(&dir.path().join(REPOSITORY).join("x")), Found::Nothing);
        let object = dir.path().join("backups/x/manifest");
        assert_eq!(repository_around(&object), Some(dir.path().into()));
    }
}
