//! What is given where, in the order of precedence: the connection string, the service, the environment.

use super::{
    files,
    parse::{self, Given, KEYWORDS, Use},
};
use crate::{
    error::{Error, ErrorKind, Result},
    platform,
};
use std::{
    collections::HashMap,
    env,
    path::{Path, PathBuf},
};

/// What a connection depends on besides its string.
pub struct Environment {
    /// Variables, by name; those of libpq and `HOME` count.
    pub variables: HashMap<String, String>,
    /// The user of the system, who is the user of the server if none is named.
    pub user: Option<String>,
    /// The home directory of that user, if `HOME` names none.
    pub home: Option<PathBuf>,
    /// Where a server on this machine listens, by default. The first is tried first.
    pub socket_directories: Vec<PathBuf>,
}

impl Environment {
    /// That of this process. A variable that is not UTF-8 is not there.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let user = platform::owner::OwnerNames::default().user(platform::user().0);
        Self {
            variables: env::vars_os().filter_map(text).collect(),
            user: (!user.is_empty()).then(|| user.to_string()),
            home: platform::owner::home_of(platform::user().0),
            // Debian's, and PostgreSQL's own.
            socket_directories: vec!["/var/run/postgresql".into(), "/tmp".into()],
        }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// A file in the user's home directory.
    pub(super) fn at_home(&self, file: &str) -> Option<PathBuf> {
        let said = self
            .variable("HOME")
            .filter(|home| !home.is_empty())
            .map(PathBuf::from);
        Some(said.or_else(|| self.home.clone())?.join(file))
    }
}

/// All that is given, first come first; and where the password came from.
pub(super) fn layered(text: &str, environment: &Environment) -> Result<(Given, String)> {
    let mut given = parse::parse(text)?;
    let mut from = if given.contains_key("password") {
        "the connection string"
    } else {
        "PGPASSWORD"
    }
    .to_owned();
    let named = |given: &Given, name: &str, variable: &str| {
        let named = given
            .get(name)
            .map(String::as_str)
            .or_else(|| environment.variable(variable));
        named.filter(|named| !named.is_empty()).map(str::to_owned)
    };
    if let Some(service) = named(&given, "service", "PGSERVICE") {
        let own = named(&given, "servicefile", "PGSERVICEFILE").map(PathBuf::from);
        // Where Debian's libpq looks.
        let system = environment
            .variable("PGSYSCONFDIR")
            .unwrap_or("/etc/postgresql-common");
        let files = own
            .or_else(|| environment.at_home(".pg_service.conf"))
            .into_iter();
        let files: Vec<_> = files
            .chain([Path::new(system).join("pg_service.conf")])
            .collect();
        for (name, value) in files::service(&service, &files)? {
            if name == "password" && !given.contains_key(name) {
                from = format!("service {service:?}");
            }
            given.entry(name).or_insert(value);
        }
    }
    for (name, variable, _) in KEYWORDS
        .iter()
        .filter(|(.., becomes)| *becomes != Use::Ignored)
    {
        match environment
            .variable(variable)
            .filter(|value| !value.is_empty())
        {
            Some(value) if !given.contains_key(name) => {
                given.insert(parse::keyword(name)?, value.to_owned())
            }
            _ => None,
        };
    }
    match given.get("gssencmode").map(String::as_str) {
        Some("require") => Err(Error::new(
            ErrorKind::Unsupported,
            "cannot encrypt a connection with GSSAPI",
        )),
        _ => Ok((given, from)),
    }
}
