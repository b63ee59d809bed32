"""ESC-50: five-second recordings of everyday sounds, fifty classes."""

from mill.api.message import AUDIO
from mill.tasks.data import Dataset
from mill.tasks.images import ClassifiedSet, add_renderings

_NAMES = """
    dog rooster pig cow frog cat hen insects sheep crow rain sea_waves crackling_fire crickets chirping_birds water_drops
    wind pouring_water toilet_flush thunderstorm crying_baby sneezing clapping breathing coughing footsteps laughing
    brushing_teeth snoring drinking_sipping door_wood_knock mouse_click keyboard_typing door_wood_creaks can_opening
    washing_machine vacuum_cleaner clock_alarm clock_tick glass_breaking helicopter chainsaw siren car_horn engine train
    church_bells airplane fireworks hand_saw
"""
FOLDERS = tuple(_NAMES.split())

ESC50 = ClassifiedSet(
    dataset=Dataset("ashraq/esc50", mirrors=("esc50",)),
    splits=("test", "train"),
    classes=tuple(name.replace("_", " ") for name in FOLDERS),
    folders=FOLDERS,
    question="What is heard in this recording?",
    media=AUDIO,
    media_columns=("audio",),
    label_columns=("category", "target", "label"),
)
add_renderings("esc50", ESC50)
