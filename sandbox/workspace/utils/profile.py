"""How fast is model_new.py?  Fixed: it is put back before judging."""
import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
from utils import ask

sys.exit(ask("profile"))
