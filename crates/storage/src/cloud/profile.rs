//! The files of AWS's own tools: `~/.aws/credentials` and `~/.aws/config`.
//!
//! A section of the first is a profile; one of the second is `default` or `profile NAME`. Values of the first go first. Indented
//! lines below a key without a value, such as the `s3 =` of its tools, are skipped.

use super::environment::CloudEnvironment;
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use fullbore_platform::debug;
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

/// The values of one profile. Some are secrets: only keys are ever printed.
#[derive(Clone, Default)]
pub(super) struct AwsProfile {
    name: String,
    values: BTreeMap<String, String>,
}

impl AwsProfile {
    /// Returns the profile that the environment names, or the default one. Empty if that is not there.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the environment names a profile that is not there; the system's for a file that cannot be read.
    pub(super) fn of(environment: &CloudEnvironment) -> Result<Self> {
        let named = environment.get("AWS_PROFILE");
        let name = named.unwrap_or("default");
        let config = read(environment, "AWS_CONFIG_FILE", "config")?;
        let credentials = read(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let mut values = BTreeMap::new();
        let mut is_there = false;
        // Of two values of one key the later section counts, as with the tools of AWS.
        for (text, section) in [
            (&config, format!("profile {name}")),
            (&config, name.to_owned()),
            (&credentials, name.to_owned()),
        ] {
            if let Some(found) = section_of(text, &section) {
                values.extend(found);
                is_there = true;
            }
        }
        if named.is_some() && !is_there {
            let message = format!("cannot find the AWS profile {}", quoted(name.as_bytes()));
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("correct AWS_PROFILE, or add the profile to ~/.aws/config"));
        }
        Ok(Self {
            name: name.to_owned(),
            values,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for AwsProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Reads the text of a file of the tools; empty if it is not there.
fn read(environment: &CloudEnvironment, variable: &str, name: &str) -> Result<String> {
    let given = environment.get(variable).map(PathBuf::from);
    let usual = || {
        environment
            .get("HOME")
            .map(|home| Path::new(home).join(".aws").join(name))
    };
    let Some(path) = given.or_else(usual) else {
        return Ok(String::new());
    };
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            debug(|| format!("{} is not there", path.display()));
            Ok(String::new())
        }
        Err(error) => Err(Error::io(format!("could not read {path:?}"), error)),
    }
}

/// Returns the values of a section; `None` if it is not there. Of two values of one key the last one counts.
fn section_of(text: &str, wanted: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut is_inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = section_name(trimmed) {
            is_inside = name == wanted;
            if is_inside {
                found.get_or_insert_default();
            }
            continue;
        }
        // An indented line is a part of the setting above it.
        let is_nested = line.starts_with([' ', '\t']);
        let Some((key, value)) = trimmed.split_once('=') else {
            continue;
        };
        if let (true, false, Some(values)) = (is_inside, is_nested, found.as_mut()) {
            values.insert(
                key.trim().to_ascii_lowercase(),
                without_comment(value).to_owned(),
            );
        }
    }
    found
}

/// Returns the name of a section, with one space between its words.
fn section_name(line: &str) -> Option<String> {
    let (name, _) = line.strip_prefix('[')?.split_once(']')?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns a value without its comment. A comment after a value begins with a space.
fn without_comment(value: &str) -> &str {
    let end = [" #", " ;", "\t#", "\t;"]
        .iter()
        .filter_map(|mark| value.find(mark))
        .min();
    value[..end.unwrap_or(value.len())].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "# of a person\n[default]\nregion = eu-west-1 # near\n\n[profile  backup]\nregion=eu-central-1\n\
                          s3 =\n    addressing_style = path\n    region = nested\nendpoint_url = https://store:9000\n[backup]\n";
    const CREDENTIALS: &str = "[default]\naws_access_key_id=A\naws_secret_access_key=a/b+c=\n[backup]\nAWS_Access_Key_Id = B\n\
                               aws_secret_access_key = hunter2\n; end\n[empty]\n";

    fn environment(dir: &Path, profile: Option<&str>) -> CloudEnvironment {
        fs::create_dir_all(dir.join(".aws")).unwrap();
        fs::write(dir.join(".aws/config"), CONFIG).unwrap();
        fs::write(dir.join(".aws/credentials"), CREDENTIALS).unwrap();
        let home = ("HOME".to_owned(), dir.to_str().unwrap().to_owned());
        let profile = profile.map(|name| ("AWS_PROFILE".to_owned(), name.to_owned()));
        CloudEnvironment::of([home].into_iter().chain(profile))
    }

    #[test]
    fn a_profile_is_read_from_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let default = AwsProfile::of(&environment(dir.path(), None)).unwrap();
        assert_eq!(default.get("region"), Some("eu-west-1"));
        assert_eq!(default.get("aws_secret_access_key"), Some("a/b+c="));
        let backup = AwsProfile::of(&environment(dir.path(), Some("backup"))).unwrap();
        assert_eq!(
            backup.get("region"),
            Some("eu-central-1"),
            "nested lines are skipped"
        );
        assert_eq!(backup.get("aws_access_key_id"), Some("B"));
        assert_eq!(backup.get("endpoint_url"), Some("https://store:9000"));
        assert!(!format!("{backup:?}").contains("hunter2"), "{backup:?}");
    }

    #[test]
    fn a_profile_that_is_named_and_absent_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = AwsProfile::of(&environment(dir.path(), Some("other"))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(AwsProfile::of(&environment(dir.path(), Some("empty"))).is_ok());
        let nowhere = CloudEnvironment::default();
        assert!(AwsProfile::of(&nowhere).unwrap().get("region").is_none());
    }
}
