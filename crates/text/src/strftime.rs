//! Dates for chat templates: the `strftime` codes of Python, in UTC.

/// Days, hours and so on of a moment.
struct Moment {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Moment {
    fn from_unix(seconds: i64) -> Moment {
        let days = seconds.div_euclid(86_400);
        let second_of_day = seconds.rem_euclid(86_400);
        let mut year = 1970 + days / 366;
        while days_before(year + 1) <= days {
            year += 1;
        }
        while days_before(year) > days {
            year -= 1;
        }
        let day_of_year = days - days_before(year);
        let mut month = 0;
        let mut day = day_of_year;
        while day >= month_len(year, month) {
            day -= month_len(year, month);
            month += 1;
        }
        Moment {
            year,
            month,
            day: day + 1,
            day_of_year: day_of_year + 1,
            // 1970 began on a Thursday.
            weekday: (days + 4).rem_euclid(7) as usize,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn month_len(year: i64, month: usize) -> i64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Days from 1 January 1970 to 1 January of `year`.
fn days_before(year: i64) -> i64 {
    let leaps = |year: i64| year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// `format` with its codes replaced, as Python has them, for a moment in UTC; codes that are not known stay as they are.
pub fn strftime(format: &str, unix_seconds: i64) -> String {
    // Year 0 to 9999, where four digits are right.
    let moment = Moment::from_unix(unix_seconds.clamp(-62_167_219_200, 253_402_300_799));
    let mut text = String::with_capacity(2 * format.len());
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut code = letters.next();
        let padded = code != Some('-');
        if !padded {
            code = letters.next();
        }
        match code.and_then(|code| field(&moment, code, padded)) {
            Some(field) => text.push_str(&field),
            None => {
                text.push_str(if padded { "%" } else { "%-" });
                text.extend(code);
            }
        }
    }
    text
}

fn field(moment: &Moment, code: char, padded: bool) -> Option<String> {
    let number = |value: i64, width: usize| {
        let width = if padded { width } else { 0 };
        format!("{value:0width$}")
    };
    let hour12 = (moment.hour + 11) % 12 + 1;
    Some(match code {
        'Y' => number(moment.year, 4),
        'y' => number(moment.year.rem_euclid(100), 2),
        'm' => number(moment.month as i64 + 1, 2),
        'B' => MONTHS[moment.month].to_owned(),
        'b' | 'h' => MONTHS[moment.month][..3].to_owned(),
        'd' => number(moment.day, 2),
        'e' if padded => format!("{:2}", moment.day),
        'e' => number(moment.day, 0),
        'j' => number(moment.day_of_year, 3),
        'A' => WEEKDAYS[moment.weekday].to_owned(),
        'a' => WEEKDAYS[moment.weekday][..3].to_owned(),
        'w' => moment.weekday.to_string(),
        'u' => ((moment.weekday + 6) % 7 + 1).to_string(),
        'H' => number(moment.hour, 2),
        'I' => number(hour12, 2),
        'M' => number(moment.minute, 2),
        'S' => number(moment.second, 2),
        'p' => (if moment.hour < 12 { "AM" } else { "PM" }).to_owned(),
        'Z' => "UTC".to_owned(),
        'z' => "+0000".to_owned(),
        'F' => format!("{:04}-{:02}-{:02}", moment.year, moment.month + 1, moment.day),
        'T' => format!("{:02}:{:02}:{:02}", moment.hour, moment.minute, moment.second),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: &str, unix_seconds: i64, expected: &str) {
        assert_eq!(strftime(format, unix_seconds), expected, "{format} at {unix_seconds}");
    }

    /// Expected texts are from `date -u -d @SECONDS +FORMAT`.
    #[test]
    fn dates_are_those_of_the_calendar() {
        check("%Y-%m-%d %H:%M:%S %j %a", 0, "1970-01-01 00:00:00 001 Thu");
        check("%F %T %A", 951_782_400, "2000-02-29 00:00:00 Tuesday");
        check("%F %T", 951_868_799, "2000-02-29 23:59:59");
        check("%F %j", 1_735_603_200, "2024-12-31 366");
        check("%F %T", -1, "1969-12-31 23:59:59");
        check("%F", 4_102_444_799, "2099-12-31");
        check("%F %a", 1_795_219_200, "2026-11-21 Sat");
    }

    #[test]
    fn the_codes_that_templates_use() {
        check("%d %b %Y", 1_722_211_200, "29 Jul 2024");
        check("%B %-d, %Y at %I:%M %p", 1_722_211_200 + 13 * 3600 - 86_400 * 27, "July 2, 2024 at 01:00 PM");
        check("%e|%-m|%y|%%|%u%w", 1_722_211_200 - 86_400 * 27, " 2|7|24|%|22");
    }

    #[test]
    fn unknown_codes_and_absurd_times_are_harmless() {
        check("%Q %-Q %", 0, "%Q %-Q %");
        check("%Y", i64::MAX, "9999");
        check("%Y", i64::MIN, "0000");
    }
}
