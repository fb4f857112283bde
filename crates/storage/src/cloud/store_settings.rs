//! Settings of all object stores of a run, and those of single stores.
//!
//! A word `KEY=VALUE` is for all stores, and `STORE,KEY=VALUE` for the places at and below the address STORE. A single store has the
//! common settings where it has none of its own.

use super::{CloudAddress, CloudSettings};
use fullbore_format::error::Result;

/// Settings of all object stores of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreSettings {
    common: CloudSettings,
    /// Whole settings of single stores.
    single: Vec<(CloudAddress, CloudSettings)>,
}

impl StoreSettings {
    /// Takes `common`, changed by the words of the command line, in any order.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) for a bad address, and as [`CloudSettings::set_pair`].
    pub fn new(mut common: CloudSettings, words: &[String]) -> Result<Self> {
        let mut single = Vec::new();
        for word in words {
            match word_of_store(word)? {
                Some(setting) => single.push(setting),
                None => common.set_pair(word)?,
            }
        }
        let mut settings = Self {
            common,
            single: Vec::new(),
        };
        for (address, pair) in single {
            settings.single_mut(address).set_pair(pair)?;
        }
        Ok(settings)
    }

    fn single_mut(&mut self, address: CloudAddress) -> &mut CloudSettings {
        let known = self.single.iter().position(|(known, _)| *known == address);
        let number = known.unwrap_or_else(|| {
            let inherited = self.for_address(&address).clone();
            self.single.push((address, inherited));
            self.single.len() - 1
        });
        &mut self.single[number].1
    }

    /// Returns the settings of a place: those of the longest address that it is at or below.
    pub fn for_address(&self, address: &CloudAddress) -> &CloudSettings {
        let matching = self
            .single
            .iter()
            .filter(|(store, _)| store.covers(address));
        let nearest = matching.max_by_key(|(store, _)| store.prefix.len());
        nearest.map_or(&self.common, |(_, settings)| settings)
    }
}

impl From<CloudSettings> for StoreSettings {
    fn from(common: CloudSettings) -> Self {
        Self {
            common,
            single: Vec::new(),
        }
    }
}

/// Returns the address and the setting in `STORE,KEY=VALUE`; `None` for a word that begins with no address.
fn word_of_store(word: &str) -> Result<Option<(CloudAddress, &str)>> {
    let Some((store, pair)) = word.split_once(',') else {
        return Ok(None);
    };
    Ok(CloudAddress::parse(store)?.map(|address| (address, pair)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::error::ErrorKind;

    fn settings(words: &[&str]) -> Result<StoreSettings> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        StoreSettings::new(CloudSettings::default(), &words)
    }

    fn region_of(settings: &StoreSettings, address: &str) -> Option<String> {
        let address = CloudAddress::parse(address).unwrap().unwrap();
        settings.for_address(&address).region.clone()
    }

    #[test]
    fn a_single_store_has_its_own_settings_and_the_common_ones() {
        let settings = settings(&[
            "s3://offsite,region=eu-north-1",
            "s3://offsite/db,tries=3",
            "region=eu-central-1",
        ])
        .unwrap();
        for (address, region) in [
            ("s3://offsite", "eu-north-1"),
            ("s3://offsite/web", "eu-north-1"),
            ("s3://offsite/db/main", "eu-north-1"),
            ("s3://offsite2", "eu-central-1"),
            ("gs://offsite", "eu-central-1"),
        ] {
            assert_eq!(
                region_of(&settings, address).as_deref(),
                Some(region),
                "{address}"
            );
        }
        let address = CloudAddress::parse("s3://offsite/db").unwrap().unwrap();
        assert_eq!(settings.for_address(&address).retries.tries, 3);
        let beside = CloudAddress::parse("s3://offsite/db2").unwrap().unwrap();
        assert_eq!(settings.for_address(&beside).retries.tries, 10);
    }

    #[test]
    fn a_bad_address_or_setting_is_refused() {
        for word in [
            "s3://,region=x",
            "s3://offsite,",
            "s3://offsite,colour=red",
            "s3://offsite",
        ] {
            let error = settings(&[word]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{word}");
        }
    }
}
