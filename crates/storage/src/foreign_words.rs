//! Places as other programs write them, such as `host:/path` and `s3:bucket`, and the words for the same place here.

use fullbore_format::error::{Error, ErrorKind, Result};
use std::path::Path;

/// The words that a place may begin with here.
const PLACES: &str = "a place is a path, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, ssh://HOST/PATH or fullbore://HOST:PORT";

/// Returns whether a path starts like a URL or a path of another host, or is `null` without its colon.
pub fn looks_foreign(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let first = text.split('/').next().unwrap_or_default();
    first.contains(':') || text == "null"
}

/// Refuses a path that [`looks_foreign`]. `verb` is the operation, such as `write to`.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub fn refuse_foreign(verb: &str, path: &Path) -> Result<()> {
    if !looks_foreign(path) {
        return Ok(());
    }
    let message =
        format!("cannot {verb} {path:?}: a path of this machine does not begin like this");
    Err(Error::new(ErrorKind::Usage, message).hint(foreign_hint(path)))
}

/// Returns a hint for a path that [`looks_foreign`].
pub fn foreign_hint(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text == "null" {
        return "use \"null:\" to discard the output".to_owned();
    }
    if let Some(ours) = of_borg(&text) {
        return ours;
    }
    let ours = translated(&text).unwrap_or_else(|| PLACES.to_owned());
    format!(
        "{ours}; a directory of this name is {:?}",
        Path::new(".").join(path)
    )
}

/// Returns the words for `REPO::ARCHIVE`.
fn of_borg(text: &str) -> Option<String> {
    let (repository, archive) = text.split_once("::")?;
    let archive = match archive {
        "" => "latest",
        archive => archive,
    };
    match repository {
        "" => Some("a backup is chosen with @, as in REPO@latest".to_owned()),
        // A host of rsync's daemon looks so, too.
        _ if !repository.contains('/') && !Path::new(repository).exists() => Some(format!(
            "a backup is chosen with @, as in \"{repository}@{archive}\"; a path of another host is ssh://HOST/PATH"
        )),
        _ => Some(format!(
            "a backup is chosen with @: write \"{repository}@{archive}\""
        )),
    }
}

/// Returns the word for the same place here, as a sentence.
fn translated(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once(':')?;
    let scheme = scheme.to_lowercase();
    match scheme.as_str() {
        "file" => Some(format!("write {:?}", path_of_url(rest))),
        "s3" => Some(object_store(rest)),
        "gs" => Some(format!("write \"gs://{}\"", without_colon(rest))),
        "az" | "azure" => Some(format!("write \"az://{}\"", without_colon(rest))),
        "b2" | "swift" | "wasabi" | "minio" => Some(
            "write \"s3://BUCKET/PREFIX\" if the store speaks S3, and set AWS_ENDPOINT_URL=https://…"
                .to_owned(),
        ),
        "sftp" | "ssh" | "scp" | "rsync" => Some(on_host(rest.trim_start_matches('/'))),
        "rest" | "http" | "https" | "rclone" | "ftp" | "smb" => None,
        _ => Some(on_host(text)),
    }
}

/// Returns the path of `///a` and `//a`, the rest of `file:///a`.
fn path_of_url(rest: &str) -> String {
    format!("/{}", rest.trim_start_matches('/'))
}

/// Returns the location of `BUCKET:/PREFIX` or `BUCKET/PREFIX`, with or without slashes in front.
fn without_colon(rest: &str) -> String {
    let rest = rest.trim_start_matches('/');
    match rest.split_once(':') {
        Some((bucket, prefix)) => format!("{bucket}/{}", prefix.trim_start_matches('/')),
        None => rest.to_owned(),
    }
}

/// Returns the location of `bucket/prefix`, or of `https://server/bucket/prefix`, whose first part has a dot or a port.
fn object_store(rest: &str) -> String {
    let (scheme, place) = rest.split_once("://").unwrap_or(("https", rest));
    let place = place.trim_start_matches('/');
    let (first, other) = place.split_once('/').unwrap_or((place, ""));
    if !first.contains(['.', ':']) {
        return format!("write \"s3://{place}\"");
    }
    if first.ends_with("amazonaws.com") {
        return format!("write \"s3://{other}\"");
    }
    format!("write \"s3://{other}\", and set AWS_ENDPOINT_URL={scheme}://{first}")
}

/// Returns the location of `[USER@]HOST:PATH` or `[USER@]HOST/PATH`.
fn on_host(text: &str) -> String {
    let offset = text.find([':', '/']).unwrap_or(text.len());
    let (host, path) = (&text[..offset], text.get(offset + 1..).unwrap_or_default());
    let is_whole = text[offset..].starts_with('/') || path.starts_with('/');
    let path = path.trim_start_matches('/');
    match is_whole {
        true => format!("write \"ssh://{host}/{path}\""),
        false => format!("write \"ssh://{host}/…/{path}\", with the whole path on that host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_other_programs_are_answered_with_ours() {
        for (theirs, ours) in [
            ("nohost:/backup/x", "write \"ssh://nohost/backup/x\""),
            ("me@nohost:/x", "write \"ssh://me@nohost/x\""),
            ("nohost:x", "write \"ssh://nohost/…/x\""),
            ("sftp:me@nohost:/x", "write \"ssh://me@nohost/x\""),
            ("sftp://me@nohost/x", "write \"ssh://me@nohost/x\""),
            ("ssh:/nohost/x", "write \"ssh://nohost/x\""),
            ("s3:vault/x", "write \"s3://vault/x\""),
            ("S3://vault/x", "write \"s3://vault/x\""),
            ("s3:s3.amazonaws.com/vault/x", "write \"s3://vault/x\""),
            (
                "s3:http://localhost:9000/vault",
                "write \"s3://vault\", and set AWS_ENDPOINT_URL=http://localhost:9000",
            ),
            ("gs:vault:/x", "write \"gs://vault/x\""),
            ("azure:vault:/x", "write \"az://vault/x\""),
            ("file:///backup", "write \"/backup\""),
            ("b2:vault:x", "write \"s3://BUCKET/PREFIX\" if"),
            ("rest:http://vault/", "a place is a path,"),
            ("null", "use \"null:\""),
        ] {
            assert!(looks_foreign(Path::new(theirs)), "{theirs}");
            let hint = foreign_hint(Path::new(theirs));
            assert!(hint.starts_with(ours), "{theirs}: {hint}");
        }
        assert!(!looks_foreign(Path::new("/srv/a:b")) && !looks_foreign(Path::new("./a:b")));
    }
}
