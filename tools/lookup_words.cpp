#include "tools/lookup_words.h"

namespace strata {

const std::vector<std::string>& Adjectives() {
  static const std::vector<std::string> words = {
      "Silver",    "Golden",   "Crimson", "Quiet",    "Ancient",  "Hidden",   "Frozen",
      "Velvet",    "Copper",   "Emerald", "Broken",   "Distant",  "Wild",     "Gentle",
      "Iron",      "Scarlet",  "Hollow",  "Bright",   "Amber",    "Misty",    "Northern",
      "Southern",  "Eastern",  "Western", "Royal",    "Lonely",   "Silent",   "Rapid",
      "Painted",   "Polished", "Rusty",   "Crystal",  "Marble",   "Stormy",   "Sunny",
      "Midnight",  "Morning",  "Winter",  "Summer",   "Autumn",   "Granite",  "Ivory",
      "Jade",      "Cobalt",   "Violet",  "Orange",   "Purple",   "White",    "Black",
      "Green",     "Blue",     "Red",     "Yellow",   "Little",   "Great",    "Old",
      "New",       "Lost",     "Secret",  "Sacred",   "Burning",  "Flying",   "Running",
      "Sleeping",  "Dancing",  "Singing", "Falling",  "Rising",   "Shining",  "Floating",
      "Wandering", "Laughing", "Clever",  "Brave",    "Noble",    "Humble",   "Swift",
      "Steady",    "Curious",  "Cosmic",  "Electric", "Magnetic", "Digital",  "Solar",
      "Lunar",     "Stellar",  "Coastal", "Alpine",   "Desert",   "Tropical", "Arctic",
      "Rural",     "Urban",    "Modern",  "Classic",  "Vintage",  "Double",   "Triple"};
  return words;
}

const std::vector<std::string>& Nouns() {
  static const std::vector<std::string> words = {
      "Falcon",     "Harbor",      "Mountain", "River",    "Garden",     "Castle",   "Bridge",
      "Lantern",    "Engine",      "Forest",   "Valley",   "Island",     "Tower",    "Market",
      "Library",    "Museum",      "Station",  "Anchor",   "Compass",    "Meadow",   "Canyon",
      "Glacier",    "Temple",      "Palace",   "Fountain", "Orchard",    "Vineyard", "Lighthouse",
      "Windmill",   "Observatory", "Theater",  "Gallery",  "Workshop",   "Foundry",  "Quarry",
      "Harvest",    "Dragon",      "Phoenix",  "Tiger",    "Eagle",      "Raven",    "Wolf",
      "Bear",       "Lion",        "Otter",    "Badger",   "Heron",      "Salmon",   "Dolphin",
      "Turtle",     "Panther",     "Sparrow",  "Hawk",     "Stallion",   "Beetle",   "Spider",
      "Comet",      "Planet",      "Meteor",   "Galaxy",   "Nebula",     "Horizon",  "Voyage",
      "Expedition", "Project",     "Account",  "Archive",  "Vault",      "Cabinet",  "Chamber",
      "Corridor",   "Gateway",     "Junction", "Reactor",  "Turbine",    "Pipeline", "Satellite",
      "Telescope",  "Microscope",  "Journal",  "Ledger",   "Manuscript", "Portrait", "Statue",
      "Violin",     "Piano",       "Trumpet",  "Drum",     "Bell",       "Mirror",   "Candle",
      "Blanket",    "Basket",      "Bottle",   "Wagon",    "Carriage",   "Schooner", "Submarine",
      "Balloon",    "Rocket"};
  return words;
}

const std::vector<std::string>& FirstNames() {
  static const std::vector<std::string> words = {
      "Alice",  "Robert",  "Maria",  "James",  "Linda",  "Thomas", "Susan",   "Peter",   "Anna",
      "George", "Helen",   "Daniel", "Laura",  "Martin", "Sarah",  "Henry",   "Julia",   "Victor",
      "Emma",   "Oscar",   "Clara",  "Walter", "Nina",   "Simon",  "Grace",   "Felix",   "Irene",
      "Hugo",   "Martha",  "Edgar",  "Ruth",   "Arthur", "Diana",  "Frank",   "Sophie",  "Albert",
      "Rose",   "Leon",    "Vera",   "Max",    "Olga",   "Samuel", "Eva",     "Louis",   "Marta",
      "Philip", "Nora",    "Adam",   "Elena",  "Bruno",  "Carol",  "David",   "Edith",   "Fiona",
      "Gordon", "Hannah",  "Ivan",   "Jane",   "Karl",   "Lucy",   "Miles",   "Naomi",   "Oliver",
      "Paula",  "Quentin", "Rachel", "Stefan", "Teresa", "Ulrich", "Valerie", "William", "Xenia",
      "Yvonne", "Zachary"};
  return words;
}

const std::vector<std::string>& LastNames() {
  static const std::vector<std::string> words = {
      "Smith",     "Johnson", "Miller",     "Baker",    "Carter",  "Fisher",     "Gardner",
      "Hunter",    "Mason",   "Parker",     "Taylor",   "Turner",  "Walker",     "Wright",
      "Cooper",    "Harris",  "Clark",      "Lewis",    "Young",   "King",       "Hill",
      "Green",     "Adams",   "Nelson",     "Mitchell", "Roberts", "Phillips",   "Campbell",
      "Evans",     "Edwards", "Collins",    "Stewart",  "Morris",  "Rogers",     "Reed",
      "Cook",      "Morgan",  "Bell",       "Murphy",   "Bailey",  "Richardson", "Cox",
      "Howard",    "Ward",    "Peterson",   "Gray",     "James",   "Watson",     "Brooks",
      "Kelly",     "Sanders", "Price",      "Bennett",  "Wood",    "Barnes",     "Ross",
      "Henderson", "Coleman", "Jenkins",    "Perry",    "Powell",  "Long",       "Patterson",
      "Hughes",    "Flores",  "Washington", "Butler",   "Simmons", "Foster",     "Bryant",
      "Alexander", "Russell", "Griffin",    "Hayes"};
  return words;
}

const std::vector<std::string>& Cities() {
  static const std::vector<std::string> words = {
      "Paris",      "London",    "Berlin",   "Madrid",     "Rome",      "Vienna",   "Prague",
      "Warsaw",     "Lisbon",    "Dublin",   "Oslo",       "Stockholm", "Helsinki", "Copenhagen",
      "Athens",     "Budapest",  "Brussels", "Amsterdam",  "Geneva",    "Zurich",   "Milan",
      "Naples",     "Venice",    "Florence", "Munich",     "Hamburg",   "Boston",   "Chicago",
      "Denver",     "Seattle",   "Dallas",   "Houston",    "Phoenix",   "Atlanta",  "Toronto",
      "Montreal",   "Vancouver", "Sydney",   "Melbourne",  "Tokyo",     "Kyoto",    "Osaka",
      "Seoul",      "Beijing",   "Shanghai", "Delhi",      "Mumbai",    "Cairo",    "Nairobi",
      "Lagos",      "Lima",      "Bogota",   "Santiago",   "Havana",    "Moscow",   "Kiev",
      "Istanbul",   "Jerusalem", "Bangkok",  "Singapore",  "Manila",    "Jakarta",  "Auckland",
      "Wellington", "Edinburgh", "Glasgow",  "Manchester", "Bristol",   "Oxford",   "Cambridge"};
  return words;
}

const std::vector<std::string>& Colours() {
  static const std::vector<std::string> words = {
      "red",   "blue", "green", "yellow", "orange", "purple",    "brown",  "black",
      "white", "gray", "pink",  "gold",   "silver", "turquoise", "crimson"};
  return words;
}

const std::vector<std::string>& Jobs() {
  static const std::vector<std::string> words = {
      "teacher", "doctor",   "farmer",    "painter",   "carpenter", "lawyer", "pilot",
      "sailor",  "baker",    "butcher",   "engineer",  "nurse",     "singer", "dancer",
      "writer",  "poet",     "farmer",    "gardener",  "driver",    "barber", "tailor",
      "plumber", "chemist",  "banker",    "soldier",   "librarian", "judge",  "waiter",
      "cook",    "mechanic", "architect", "journalist"};
  return words;
}

const std::vector<std::string>& Months() {
  static const std::vector<std::string> words = {"January",   "February", "March",    "April",
                                                 "May",       "June",     "July",     "August",
                                                 "September", "October",  "November", "December"};
  return words;
}

const std::vector<std::string>& SecretWords() {
  static const std::vector<std::string> words = {
      "apple",   "banana", "river",  "stone",   "window", "pencil", "rabbit",  "thunder",
      "blanket", "marble", "pepper", "ginger",  "castle", "rocket", "pillow",  "hammer",
      "ladder",  "button", "candle", "feather", "basket", "bridge", "copper",  "velvet",
      "walnut",  "lemon",  "saddle", "anchor",  "mirror", "bottle", "whistle", "puzzle",
      "lantern", "ribbon", "tunnel", "carpet",  "helmet", "garden", "engine",  "magnet"};
  return words;
}

}  // namespace strata
