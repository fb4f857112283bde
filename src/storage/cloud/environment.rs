//! The variables of the environment that object stores are configured by.

use std::{collections::BTreeMap, fmt};

/// Variables of the environment. Their values may be secrets: only names are ever printed.
#[derive(Clone, Default)]
pub struct CloudEnvironment(BTreeMap<String, String>);

impl CloudEnvironment {
    /// The variables of this process that are text.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os();
        let as_text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(variables.filter_map(as_text).collect())
    }

    /// These variables.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(variables.into_iter().collect())
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The variables whose names begin with `prefix`, in the order of their names.
    pub(super) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0
            .range(prefix.to_owned()..)
            .take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl fmt::Debug for CloudEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_environment_are_not_printed() {
        let variables = [("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned())];
        let environment = CloudEnvironment::of(variables);
        assert_eq!(format!("{environment:?}"), "{\"AWS_SECRET_ACCESS_KEY\"}");
        assert_eq!(environment.get("AWS_SECRET_ACCESS_KEY"), Some("hunter2"));
        assert_eq!(environment.below("AWS_S").count(), 1);
        assert_eq!(environment.below("AWS_T").count(), 0);
    }
}
